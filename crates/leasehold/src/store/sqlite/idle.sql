WITH batch AS (
    SELECT key, iif(boot = :boot, ends < :up, wall_ends < :wall) AS idle
    FROM leases WHERE key > :after ORDER BY key LIMIT :batch
)
