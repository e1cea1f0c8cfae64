-- Nothing is locked on another session than the one that was begun for it: null. The token is drawn under the lock: it is
-- the only element; no element = somebody else has the lock.
SELECT CASE WHEN current_setting('leasehold.session', true) = $1 THEN
    CASE WHEN pg_try_advisory_lock($2) THEN ARRAY[nextval('{fence}')] ELSE '{}'::bigint[] END
END
