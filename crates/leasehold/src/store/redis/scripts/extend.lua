-- KEYS: key, companion. ARGV: owner, ttl, now, holder or nothing, dated.
-- Answers {1, how long it stands, fencing token} or {0}.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return { 0 }
end
-- A full server refuses these, and still prolongs a lease.
redis.pcall('HSET', KEYS[2], 'owner', ARGV[1], 'renewed', ARGV[3])
if ARGV[4] ~= '' then
    redis.pcall('HSET', KEYS[2], 'holder', ARGV[4])
end
local fence = present_fence(KEYS[2], ARGV[5])
keep(KEYS[2], ARGV[5])
return { 1, prolong(KEYS[1], ARGV[2]), fence }
