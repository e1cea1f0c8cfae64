-- Of claims that ask twice for the same lease the longest counts, and each has an answer.
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::text[])
        WITH ORDINALITY AS asked (key, owner, ttl, holder, number)
), wanted AS (
    SELECT key, owner, max(ttl) AS ttl, max(holder) AS holder FROM asked GROUP BY key, owner
), extended AS (
    UPDATE {leases} AS lease SET
        expires = greatest(lease.expires, clock_timestamp() + wanted.ttl * interval '1 microsecond'),
        renewed = clock_timestamp(),
        holder = coalesce(wanted.holder, lease.holder)
    FROM wanted
    WHERE lease.key = wanted.key AND lease.owner = wanted.owner AND lease.expires > clock_timestamp()
    RETURNING lease.key, lease.owner, lease.fence, lease.expires
)
SELECT asked.number, fence, {micros_until_expires} FROM asked JOIN extended USING (key, owner)
