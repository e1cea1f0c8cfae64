WITH passed AS (
    UPDATE {leases} AS lease SET
        owner = $2,
        fence = CASE WHEN lease.owner = $2 THEN lease.fence ELSE greatest(nextval('{fence}'), lease.fence + 1) END,
        expires = CASE WHEN lease.owner = $2
            THEN greatest(lease.expires, clock_timestamp() + $3 * interval '1 microsecond')
            ELSE clock_timestamp() + $3 * interval '1 microsecond' END,
        since = CASE WHEN lease.owner = $2 THEN lease.since ELSE clock_timestamp() END,
        renewed = clock_timestamp(),
        holder = CASE WHEN lease.owner = $2 THEN lease.holder ELSE coalesce(nullif($4, ''), lease.holder) END
    WHERE key = $1 AND owner IN ($2, $5) AND expires > clock_timestamp()
    RETURNING fence, expires
)
SELECT fence, {micros_until_expires} FROM passed
