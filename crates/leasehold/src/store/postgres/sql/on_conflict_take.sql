-- The token is drawn once the row is ours alone (ON CONFLICT locks it before SET is evaluated), so that it is higher than
-- that of whoever held the row in between; and it is higher than the row's last one even if the sequence was set back.
ON CONFLICT (key) DO UPDATE SET
    owner = $2,
    fence = CASE WHEN lease.owner = $2 AND lease.expires > clock_timestamp()
        THEN lease.fence ELSE greatest(nextval('{fence}'), lease.fence + 1) END,
    expires = CASE WHEN lease.owner = $2 THEN greatest(lease.expires,
        clock_timestamp() + $3 * interval '1 microsecond')
        ELSE clock_timestamp() + $3 * interval '1 microsecond' END,
    since = CASE WHEN lease.owner = $2 AND lease.expires > clock_timestamp()
        THEN lease.since ELSE clock_timestamp() END,
    renewed = clock_timestamp(),
    holder = CASE WHEN lease.owner = $2 AND lease.expires > clock_timestamp()
        THEN lease.holder ELSE $4 END
WHERE lease.owner = '' OR lease.owner = $2 OR lease.expires <= clock_timestamp()
