INSERT INTO documents (id, content, fence) VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET content = excluded.content, fence = excluded.fence
WHERE excluded.fence >= documents.fence
