-- KEYS: key, companion. ARGV: dated, the expected owner if only that is meant.
-- Answers what the inspection does, and the fencing token up to which the resource should refuse.
local held = redis.call('GET', KEYS[1])
if not held or (ARGV[2] and held ~= ARGV[2]) then
    return {}
end
local companion = redis.call('HMGET', KEYS[2], 'held', 'renewed', 'holder', 'fence')
local left = redis.call('PTTL', KEYS[1])
local fence = next_fence(KEYS[2], ARGV[1])
redis.call('HSET', KEYS[2], 'fence', text(fence))
redis.call('DEL', KEYS[1])
return { held, left, companion, fence }
