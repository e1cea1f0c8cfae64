-- Since when the server is there comes with it, which no two have in common.
SELECT bool_or(granted), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND pid = $1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = $2
