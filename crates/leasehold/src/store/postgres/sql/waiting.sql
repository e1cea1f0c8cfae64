-- For which keys somebody waits, and how long that counts.
SELECT key, (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint FROM {waits}
WHERE until > clock_timestamp() LIMIT $1
