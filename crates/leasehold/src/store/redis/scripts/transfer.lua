-- KEYS: key, companion. ARGV: owner, ttl, held, holder, the owner it comes from.
-- Without a holder the old one stays. Answers as acquire does, or {0} if neither owner holds the key.
local from = redis.call('GET', KEYS[1])
if from == ARGV[1] then
    local refusal = refused(KEYS[1], from)
    if refusal then
        return refusal
    end
    local fence = present_fence(KEYS[1], KEYS[2])
    return { 1, prolong(KEYS[1], ARGV[2]), fence }
end
if from ~= ARGV[5] then
    return refused(KEYS[1], from) or { 0 }
end
local holder = ARGV[4]
if holder == '' then
    local before = redis.call('HMGET', KEYS[2], 'held', 'holder')
    if before[1] and string.match(before[1], '^%d+ (.*)$') == from then
        holder = before[2] or ''
    end
end
local fence = note(KEYS[2], ARGV[3], holder, server_time(KEYS[1]))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
-- Read last, as in prolong. No error may follow the grant.
redis.pcall('PTTL', KEYS[1])
return fence
