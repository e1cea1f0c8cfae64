-- Which of these are held no more.
SELECT number FROM unnest($1::text[], $2::bytea[]) WITH ORDINALITY AS asked (key, owner, number)
WHERE NOT EXISTS (
    SELECT FROM {leases} AS lease
    WHERE lease.key = asked.key AND lease.owner = asked.owner AND lease.expires > clock_timestamp()
)
