-- Reads first: a claim that is refused writes nothing. The token is drawn once the row is ours alone (ON CONFLICT locks
-- it before SET is evaluated), so that it is higher than that of whoever held the row in between; and it is higher than
-- the row's last one even if the sequence was set back.
WITH held AS MATERIALIZED (
    SELECT owner, expires FROM {leases} WHERE {is_here} AND key = $1 AND owner <> '' AND expires > clock_timestamp()
), granted AS (
    INSERT INTO {leases} AS lease (key, owner, fence, expires, since, renewed, holder)
    SELECT $1, $2, nextval('{fence}'), clock_timestamp() + $3 * interval '1 microsecond',
        clock_timestamp(), clock_timestamp(), $4
    WHERE NOT EXISTS (SELECT FROM held WHERE owner <> $2)
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
    RETURNING fence
)
SELECT fence, 0::bigint FROM granted
UNION ALL
SELECT NULL::bigint, {micros_until_expires} FROM held WHERE NOT EXISTS (SELECT FROM granted)
