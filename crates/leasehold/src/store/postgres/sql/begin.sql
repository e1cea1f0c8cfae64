-- Makes the session our own, unless it is another's, or was one: then nothing is changed, and the first column is null.
-- Nothing ends ours for being idle, and the server soon gives up a client that has vanished.
WITH asked AS MATERIALIZED (
    SELECT coalesce(current_setting('leasehold.session', true), '') IN ('', $1) AS is_ours
)
SELECT
    CASE WHEN is_ours THEN set_config('leasehold.session', $1, false) END,
    pg_backend_pid(),
    coalesce((SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()), ''),
    CASE WHEN is_ours THEN set_config('application_name', 'leasehold ' || left($1, 16), false) END,
    (
        SELECT count(set_config(name, value, false))
        FROM pg_settings JOIN (VALUES
            ('idle_session_timeout', '0'), ('tcp_keepalives_idle', '15'), ('tcp_keepalives_interval', '5'),
            ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '30s')
        ) AS wanted (name, value) USING (name)
        WHERE is_ours
    )
FROM asked
