-- KEYS: key, companion. ARGV: owner, ttl, now, holder, dated.
-- Answers {1, how long it stands, fencing token} or {0, how long somebody else's lease still stands}.
local held = redis.call('GET', KEYS[1])
if not held then
    return { 1, ARGV[2], grant(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]) }
end
if held == ARGV[1] then
    return { 1, prolong(KEYS[1], ARGV[2]), present_fence(KEYS[2], ARGV[5]) }
end
return { 0, redis.call('PTTL', KEYS[1]) }
