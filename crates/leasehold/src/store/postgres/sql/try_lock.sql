-- Nothing is locked on another session than the one that was begun for it. The token is drawn under the lock.
WITH tried AS MATERIALIZED (
    SELECT CASE WHEN {is_session} THEN pg_try_advisory_lock($2) END AS locked
)
SELECT locked, CASE WHEN locked THEN nextval('{fence}') END FROM tried
