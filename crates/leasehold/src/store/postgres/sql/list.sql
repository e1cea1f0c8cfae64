SELECT {holder} FROM {leases}
WHERE key >= $1 AND starts_with(key, $1) AND ($2::text IS NULL OR key > $2)
    AND owner <> '' AND expires > clock_timestamp()
ORDER BY key LIMIT $3
