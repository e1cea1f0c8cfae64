SELECT
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    (extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) * 1000000)::bigint,
    current_setting('synchronous_commit'),
    current_setting('fsync'),
    (SELECT count(*) FROM pg_stat_replication),
    current_setting('synchronous_standby_names')
