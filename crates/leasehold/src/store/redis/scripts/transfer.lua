-- KEYS: key, companion. ARGV: owner, ttl, now, holder, dated, the owner it comes from.
-- Without a holder the old one stays. Answers {1, how long it stands, fencing token} or {0}.
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
    return { 1, prolong(KEYS[1], ARGV[2]), present_fence(KEYS[2], ARGV[5]) }
end
if held ~= ARGV[6] then
    return { 0 }
end
if ARGV[4] == '' and redis.call('HGET', KEYS[2], 'owner') == held then
    ARGV[4] = redis.call('HGET', KEYS[2], 'holder') or ''
end
return { 1, ARGV[2], grant(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]) }
