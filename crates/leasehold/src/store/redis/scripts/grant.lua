-- Beside each key stands its companion, a hash with what the key itself cannot keep:
-- fence: the latest fencing token;  held: since when, and the owner;  holder: what people may read;  renewed: when.

-- The server's time in microseconds: where the lease ends, less what is left of it. Version 6 and some users have to ask.
-- Who may not gets 0.
local function server_time(key, left)
    local ends = redis.pcall('PEXPIRETIME', key)
    -- Only what is read is watched.
    left = type(ends) == 'number' and left or redis.pcall('PTTL', key)
    if type(ends) == 'number' and ends > 0 then
        return (ends - left) * 1000
    end
    local time = redis.pcall('TIME')
    return time.err and 0 or time[1] * 1000000 + time[2]
end

-- The next fencing token: one more than the last, and at least the server's time. So tokens go on to grow where the
-- counter was lost, or a replica took over that did not know the latest ones, unless the clock goes back.
local function next_fence(companion, time)
    local counted = redis.call('HINCRBY', companion, 'fence', 1)
    -- From its first use, and from each extend, it lasts for 30 days; without the time it only counts, and is kept.
    if counted == 1 and time > 0 then
        redis.call('PEXPIRE', companion, 2592000000)
    end
    local fence = counted > time and counted or time
    -- Numbers above are not exact here.
    if fence >= 9007199254740992 then
        error({ err = 'ERR the fencing tokens of this key are used up' })
    end
    return fence
end

-- Notes a new holder, and the line if it has changed, and answers with the holder's fencing token.
local function note(companion, held, holder, time, line)
    local fence = next_fence(companion, time)
    if line then
        redis.call('HSET', companion, 'fence', fence, 'held', held, 'holder', holder, 'line', line)
    else
        redis.call('HSET', companion, 'fence', fence, 'held', held, 'holder', holder)
    end
    return fence
end

-- The fencing token of the present holder; a new one if the companion was lost meanwhile.
local function present_fence(key, companion)
    local fence = redis.call('HGET', companion, 'fence')
    if fence then
        return tonumber(fence)
    end
    fence = next_fence(companion, server_time(key))
    redis.call('HSET', companion, 'fence', fence)
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
