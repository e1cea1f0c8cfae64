-- KEYS: key, companion. ARGV: the expected owner if only that is meant.
-- Answers what the inspection does, and the fencing token up to which the resource should refuse.
local held = redis.call('GET', KEYS[1])
if not held or (ARGV[1] and held ~= ARGV[1]) then
    return refused(KEYS[1], held) or {}
end
local companion = redis.call('HMGET', KEYS[2], 'held', 'renewed', 'holder', 'fence')
local left = redis.call('PTTL', KEYS[1])
local time = server_time(KEYS[1])
local counted, fence = pcall(next_fence, KEYS[2], time)
if counted then
    redis.call('HSET', KEYS[2], 'fence', fence)
else
    -- A server that is out of memory can still remove a lease. The next token is above the last one, and if that is not
    -- known, at least the time of its grant, which may be told in whole milliseconds.
    fence = tonumber(companion[4]) or math.max(time - time % 1000 - 1, 0)
end
redis.call('DEL', KEYS[1])
-- Longer than any owner token is no token, and may be very long.
return { string.sub(held, 1, 513), left, companion, fence }
