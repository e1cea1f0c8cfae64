-- KEYS: key, companion. ARGV: owner, ttl, now, holder or nothing, dated.
-- Answers {1, how long it stands, fencing token} or {0}.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return { 0 }
end
redis.call('HSET', KEYS[2], 'renewed', ARGV[3])
if ARGV[4] ~= '' then
    redis.call('HSET', KEYS[2], 'holder', ARGV[4])
end
local fence = present_fence(KEYS[2], ARGV[5])
if ARGV[5] == '1' then
    redis.call('PEXPIRE', KEYS[2], 2592000000)
end
return { 1, prolong(KEYS[1], ARGV[2]), fence }
