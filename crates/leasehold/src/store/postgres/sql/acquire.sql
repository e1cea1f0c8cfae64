-- Reads first: a claim that is refused writes nothing.
WITH held AS MATERIALIZED (
    SELECT owner, expires FROM {leases} WHERE {is_here} AND key = $1 AND owner <> '' AND expires > clock_timestamp()
), granted AS (
    INSERT INTO {leases} AS lease (key, owner, fence, expires, since, renewed, holder)
    SELECT $1, $2, nextval('{fence}'), clock_timestamp() + $3 * interval '1 microsecond',
        clock_timestamp(), clock_timestamp(), $4
    WHERE NOT EXISTS (SELECT FROM held WHERE owner <> $2)
    {on_conflict_take}
    RETURNING fence
)
SELECT fence, 0::bigint FROM granted
UNION ALL
SELECT NULL::bigint, {micros_until_expires} FROM held WHERE NOT EXISTS (SELECT FROM granted)
