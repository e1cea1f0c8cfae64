INSERT OR REPLACE INTO leases (
    key, owner, token, boot, ends, wall_ends,
    tie, tie_id, tie_start, tie_pid_namespace,
    host, pid, command, label, reason, since, renewed
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
