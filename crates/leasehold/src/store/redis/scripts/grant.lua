-- Beside each key stands its companion, a hash with what the key itself cannot keep:
-- fence: the latest fencing token;  held: since when, and the owner;  holder: what people may read;  renewed: when.

-- The next fencing token. A counter that starts anew starts at the server's time in microseconds, which counting never
-- reaches. So one that was lost, or ran out after 30 days, is no loss unless the clock goes back that far. Without the
-- right to ask for the time it is kept for good.
local function next_fence(companion, dated)
    local fence = redis.call('HINCRBY', companion, 'fence', 1)
    if fence == 1 and dated == '1' then
        local time = redis.call('TIME')
        fence = time[1] * 1000000 + time[2]
        redis.call('HSET', companion, 'fence', string.format('%.0f', fence))
        redis.call('PEXPIRE', companion, 2592000000)
    end
    -- Numbers above are not exact here.
    if fence >= 9007199254740992 then
        error({ err = 'ERR the fencing tokens of this key are used up' })
    end
    return fence
end

-- Notes a new holder and answers with its fencing token.
local function note(companion, held, holder, dated)
    local fence = next_fence(companion, dated)
    redis.call('HSET', companion, 'held', held, 'holder', holder)
    return fence
end

-- The fencing token of the present holder; a new one if the companion was lost meanwhile.
local function present_fence(companion, dated)
    local fence = redis.call('HGET', companion, 'fence')
    return fence and tonumber(fence) or next_fence(companion, dated)
end

-- Makes a lease stand for at least so long from now, and tells how long it stands. The key is read last, so that the
-- server tells this connection when somebody else changes it.
local function prolong(key, ttl)
    local left = redis.call('PTTL', key)
    ttl = tonumber(ttl)
    if left >= 0 and left < ttl then
        redis.call('PEXPIRE', key, ttl)
        left = redis.call('PTTL', key)
    end
    return left
end
