SELECT
    key, owner, token, boot, ends, wall_ends,
    tie, tie_id, tie_start, tie_pid_namespace,
    host, pid, command, label, reason, since, renewed
FROM leases WHERE key = ?1
