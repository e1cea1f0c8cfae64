INSERT INTO {waits} (key, until) SELECT $1, clock_timestamp() + $2 * interval '1 microsecond' WHERE {without_flush}
ON CONFLICT (key) DO UPDATE SET until = excluded.until
