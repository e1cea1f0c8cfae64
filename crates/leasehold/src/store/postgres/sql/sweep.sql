-- A row of yesterday is not needed for its token, which the sequence remembers. No claim is a day old: none that drew
-- its token before the row went can still be valid. Few keys at a time, in their order, so that nobody has to wait.
WITH near AS MATERIALIZED (
    SELECT key, expires FROM {leases} WHERE key > $1 ORDER BY key LIMIT $2
), idle AS MATERIALIZED (
    SELECT lease.key FROM {leases} AS lease JOIN near USING (key)
    WHERE near.expires < clock_timestamp() - interval '1 day'
        AND lease.expires < clock_timestamp() - interval '1 day' AND {without_flush}
    FOR UPDATE OF lease SKIP LOCKED
), gone AS (
    DELETE FROM {leases} AS lease USING idle WHERE lease.key = idle.key
)
SELECT key FROM near ORDER BY key DESC LIMIT 1
