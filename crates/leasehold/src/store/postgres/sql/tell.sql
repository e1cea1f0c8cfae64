-- By itself: a notification within the transaction of the release would let only one commit at a time.
SELECT pg_notify('{channel}', $2) FROM {waits} WHERE key = $1 AND until > clock_timestamp() AND {without_flush}
