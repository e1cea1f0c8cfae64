-- Marks that have not counted for an hour; by itself, since a table of waiters may be missing.
WITH near AS MATERIALIZED (
    SELECT key, until FROM {waits} WHERE key > $1 ORDER BY key LIMIT $2
), idle AS MATERIALIZED (
    SELECT mark.key FROM {waits} AS mark JOIN near USING (key)
    WHERE near.until < clock_timestamp() - interval '1 hour'
        AND mark.until < clock_timestamp() - interval '1 hour' AND {without_flush}
    FOR UPDATE OF mark SKIP LOCKED
)
DELETE FROM {waits} AS mark USING idle WHERE mark.key = idle.key
