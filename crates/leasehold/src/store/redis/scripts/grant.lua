-- The companion of a key keeps what the key itself cannot: a hash with the fencing counter, and who holds the key.

-- The next fencing token. A counter that starts anew starts at the server's time in microseconds, which is above every
-- token given before by counting, so nothing is lost with a counter that expired or was evicted.
local function next_fence(companion, dated)
    local fence = redis.call('HINCRBY', companion, 'fence', 1)
    if fence == 1 and dated == '1' then
        local time = redis.call('TIME')
        fence = time[1] * 1000000 + time[2]
        redis.call('HSET', companion, 'fence', string.format('%.0f', fence))
    end
    -- Numbers above are not exact here.
    if fence >= 9007199254740992 then
        return error({ err = 'ERR the fencing tokens of this key are used up' })
    end
    return fence
end

-- Keeps the companion for a week after the longest lease; one that cannot start anew is kept for good.
local function keep(companion, dated)
    if dated == '1' then
        redis.call('PEXPIRE', companion, 691200000)
    end
end

-- Writes a new holder and answers with its fencing token. What may be refused comes before the key itself is touched.
local function grant(key, companion, owner, ttl, now, holder, dated)
    local fence = next_fence(companion, dated)
    redis.call('HSET', companion, 'owner', owner, 'since', now, 'renewed', now, 'holder', holder)
    keep(companion, dated)
    redis.call('SET', key, owner, 'PX', ttl)
    -- Read last, so that the server tells this connection when somebody else changes the key.
    redis.call('PTTL', key)
    return fence
end

-- Makes a lease stand for at least so long from now, and tells how long it stands.
local function prolong(key, ttl)
    local left = redis.call('PTTL', key)
    ttl = tonumber(ttl)
    if left >= 0 and left < ttl then
        redis.call('PEXPIRE', key, ttl)
        left = redis.call('PTTL', key)
    end
    return left
end

-- The fencing token of the present holder; a new one if the companion was lost meanwhile.
local function present_fence(companion, dated)
    local fence = redis.call('HGET', companion, 'fence')
    return fence and tonumber(fence) or next_fence(companion, dated)
end
