SELECT CASE WHEN current_setting('leasehold.transaction', true) = $1 THEN pg_try_advisory_xact_lock($2) END,
    pg_backend_pid()
