-- What is set here holds until the transaction ends, and tells it from every other one. No limit may end it while its lock
-- is waited for or held. The server soon gives up a client that has vanished.
BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE;
SELECT
    set_config('leasehold.transaction', '{id}', true),
    set_config('application_name', '{name}', true),
    set_config('statement_timeout', '0', true),
    set_config('lock_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', '0', true),
    CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
        THEN set_config('transaction_timeout', '0', true) END,
    set_config('tcp_keepalives_idle', '15', true),
    set_config('tcp_keepalives_interval', '5', true),
    set_config('tcp_keepalives_count', '3', true),
    set_config('tcp_user_timeout', '30s', true)
