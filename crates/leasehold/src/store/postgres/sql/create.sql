CREATE TABLE {leases} (
    key text COLLATE "C" PRIMARY KEY,
    owner bytea NOT NULL,
    fence bigint NOT NULL,
    expires timestamptz NOT NULL,
    since timestamptz NOT NULL,
    renewed timestamptz NOT NULL,
    holder text NOT NULL
) WITH (fillfactor = 50);
CREATE SEQUENCE IF NOT EXISTS {fence} AS bigint;
SELECT setval('{fence}', greatest(nextval('{fence}'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint));
CREATE UNLOGGED TABLE IF NOT EXISTS {waits} (
    key text COLLATE "C" PRIMARY KEY,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE {leases} IS '{version}';
