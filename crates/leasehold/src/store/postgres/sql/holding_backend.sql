SELECT pid, coalesce(application_name, ''), coalesce(host(client_addr), ''), (
    SELECT count(*) FROM pg_locks AS other
    WHERE other.pid = held.pid AND other.locktype = 'advisory' AND other.granted
)
FROM pg_locks AS held LEFT JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND held.granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = $1
