-- As acquire.sql, where nobody asks how long somebody else's lease still stands: half of the work. No row = it does.
INSERT INTO {leases} AS lease (key, owner, fence, expires, since, renewed, holder)
SELECT $1, $2, nextval('{fence}'), clock_timestamp() + $3 * interval '1 microsecond',
    clock_timestamp(), clock_timestamp(), $4
WHERE {is_here} AND NOT EXISTS (
    SELECT FROM {leases} AS held
    WHERE held.key = $1 AND held.owner <> '' AND held.owner <> $2 AND held.expires > clock_timestamp()
)
{on_conflict_take}
RETURNING fence, 0::bigint
