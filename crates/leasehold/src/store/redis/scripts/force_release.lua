-- KEYS: key, companion. ARGV: the expected owner if only that is meant.
-- Answers what the inspection does, and the fencing token up to which the resource should refuse.
local held = redis.call('GET', KEYS[1])
if not held or (ARGV[1] and held ~= ARGV[1]) then
    return refused(KEYS[1], held) or {}
end
local companion = redis.call('HMGET', KEYS[2], 'held', 'renewed', 'holder', 'fence')
local left = redis.call('PTTL', KEYS[1])
local fence = next_fence(KEYS[2], server_time(KEYS[1]))
redis.call('HSET', KEYS[2], 'fence', fence)
redis.call('DEL', KEYS[1])
-- Longer than any owner token is no token, and may be very long.
return { string.sub(held, 1, 513), left, companion, fence }
