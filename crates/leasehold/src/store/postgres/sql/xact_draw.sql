-- By a transaction of its own, so that it does not wait for the disk until the lock is given back, and that the one which
-- holds the lock has no number and holds up no vacuum. The lock is looked at once the token is drawn: so it was drawn under the lock.
WITH drawn AS MATERIALIZED (SELECT nextval('{fence}') AS fence)
SELECT fence, EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid = $1 AND fence IS NOT NULL
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32 | objid::bigint) = $2
) FROM drawn
