SELECT
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    (extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) * 1000000)::bigint,
    current_setting('synchronous_commit'),
    current_setting('fsync'),
    (SELECT count(*) FROM pg_stat_replication),
    current_setting('synchronous_standby_names'),
    -- In milliseconds, and unknown before version 14: that of this user and database, and that of this session.
    coalesce((SELECT reset_val::bigint FROM pg_settings WHERE name = 'idle_session_timeout'), 0),
    coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'idle_session_timeout'), 0)
