-- Beside each key stands its companion, a hash with what the key itself cannot keep:
-- fence: the latest fencing token;  held: since when, and the owner;  holder: what people may read;  renewed: when.

-- The next fencing token: one more than the last, and at least the server's time in microseconds. So tokens go on to grow
-- where the counter was lost, or a replica took over that did not know the latest ones, unless the clock goes back. A
-- counter that nobody uses runs out after 30 days; without the right to ask for the time it only counts, and is kept.
local function next_fence(companion, dated)
    local fence = redis.call('HINCRBY', companion, 'fence', 1)
    if dated == '1' then
        if fence == 1 then
            redis.call('PEXPIRE', companion, 2592000000)
        end
        local time = redis.call('TIME')
        fence = math.max(fence, time[1] * 1000000 + time[2])
    end
    -- Numbers above are not exact here.
    if fence >= 9007199254740992 then
        error({ err = 'ERR the fencing tokens of this key are used up' })
    end
    return fence
end

local function text(fence)
    return string.format('%.0f', fence)
end

-- Notes a new holder and answers with its fencing token.
local function note(companion, held, holder, dated)
    local fence = next_fence(companion, dated)
    redis.call('HSET', companion, 'fence', text(fence), 'held', held, 'holder', holder)
    return fence
end

-- The fencing token of the present holder; a new one if the companion was lost meanwhile.
local function present_fence(companion, dated)
    local fence = redis.call('HGET', companion, 'fence')
    if fence then
        return tonumber(fence)
    end
    fence = next_fence(companion, dated)
    redis.call('HSET', companion, 'fence', text(fence))
    return fence
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
