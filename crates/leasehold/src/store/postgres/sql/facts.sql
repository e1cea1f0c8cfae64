SELECT
    pg_is_in_recovery(),
    current_setting('transaction_read_only') = 'on',
    current_setting('server_encoding'),
    current_setting('server_version_num')::int,
    EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
    (SELECT obj_description(class.oid, 'pg_class') FROM pg_class AS class
        JOIN pg_namespace AS space ON space.oid = relnamespace WHERE nspname = $1 AND relname = $2),
    (SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attname COLLATE "C")
        FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = relnamespace
        JOIN pg_attribute ON attrelid = class.oid AND attnum > 0 AND NOT attisdropped
        WHERE nspname = $1 AND relname = $2),
    (SELECT bool_and(has_table_privilege(class.oid, privilege))
        FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = relnamespace,
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS privilege
        WHERE nspname = $1 AND relname = $2 || '_waits'
            AND has_schema_privilege(space.oid, 'USAGE')),
    current_setting('synchronous_commit') <> 'off' AND current_setting('fsync') = 'on',
    (SELECT min(relname) FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = relnamespace
        WHERE nspname = $1 AND relname IN ($2, $2 || '_fence') AND relpersistence <> 'p'),
    EXISTS (SELECT FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = relnamespace
        WHERE nspname = $1 AND relname = $2 || '_fence')
