-- KEYS: key, companion. ARGV: owner, ttl, now, holder or nothing.
-- Answers {1, how long it stands, fencing token} or {0}.
local held = redis.call('GET', KEYS[1])
if held ~= ARGV[1] then
    return refused(KEYS[1], held) or { 0 }
end
-- First, because a server that is out of memory still lets this pass. What is noted is not worth a lease.
local stands = prolong(KEYS[1], ARGV[2])
-- A lease that stood for longer needed no change, but no replica's word counts.
local refusal = as_replica(redis.pcall('HSET', KEYS[2], 'renewed', ARGV[3]))
if refusal then
    return refusal
end
if ARGV[4] ~= '' then
    redis.pcall('HSET', KEYS[2], 'holder', ARGV[4])
end
if redis.pcall('PTTL', KEYS[2]) ~= -1 then
    redis.pcall('PEXPIRE', KEYS[2], 2592000000)
end
local known, fence = pcall(present_fence, KEYS[1], KEYS[2])
return { 1, stands, known and fence or 0 }
