-- By a transaction of its own, so that it does not wait for the disk until the lock is given back, and that the one which
-- holds the lock has no number and holds up no vacuum.
SELECT nextval('{fence}')
