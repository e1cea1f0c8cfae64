SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = $1
