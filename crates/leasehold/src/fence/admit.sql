INSERT INTO fences (resource, token) VALUES (?1, ?2)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token
WHERE excluded.token >= fences.token
