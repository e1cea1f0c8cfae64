-- By a transaction of its own, so that it does not wait for the disk until the lock is given back, and that the one which
-- holds the lock has no number and holds up no vacuum; and since when this server is there, which no two have in common.
SELECT nextval('{fence}'), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
