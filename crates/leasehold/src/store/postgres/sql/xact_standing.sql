SELECT granted FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND pid = $1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = $2
