WITH held AS MATERIALIZED (
    SELECT * FROM {leases}
    WHERE key = $1 AND owner <> '' AND expires > clock_timestamp() AND ($2::bytea IS NULL OR owner = $2)
    FOR UPDATE
), freed AS (
    UPDATE {leases} AS lease SET owner = '', expires = clock_timestamp(), holder = '',
        fence = greatest(nextval('{fence}'), lease.fence + 1)
    FROM held WHERE lease.key = held.key
    RETURNING lease.fence AS floor
)
SELECT {holder}, floor FROM held, freed
