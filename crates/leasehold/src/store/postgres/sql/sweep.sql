-- A row of yesterday is not needed for its token, which the sequence remembers. No claim is a day old: none that drew
-- its token before the row went can still be valid.
WITH idle AS (
    SELECT key FROM {leases} WHERE expires < clock_timestamp() - interval '1 day'
    LIMIT 10000 FOR UPDATE SKIP LOCKED
), waits AS (
    DELETE FROM {waits} WHERE until < clock_timestamp() - interval '1 hour'
)
DELETE FROM {leases} AS lease USING idle
WHERE lease.key = idle.key AND lease.expires < clock_timestamp() - interval '1 day' AND {without_flush}
