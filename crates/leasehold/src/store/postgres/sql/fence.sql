-- Only where it is missing: one that is in use would be set back. Nobody sees it before it is set.
CREATE SEQUENCE {fence} AS bigint;
SELECT setval('{fence}', greatest(
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, (SELECT max(fence) FROM {leases})
));
