-- Ends a session of ours. A pooler may have lent the server's process to somebody else, who goes by another name.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = $1 AND backend_start::text = $2 AND application_name = 'leasehold ' || left($3, 16)
