-- KEYS: key, companion. ARGV: owner, ttl, held, holder, who stands in line if it does.
-- Answers the fencing token of a new lease, {1, how long it stands, fencing token} if it was held by this owner already,
-- or {0, how long somebody else's lease still stands, how many are before this one in line}, with a fourth item
-- if nobody has it.
local me = ARGV[5]
local line, at = line_of(KEYS[2], me)
if puts_off(KEYS[1], KEYS[2], line, at, me) then
    -- What a waiter needs to be told of the release and to ask, a few times over.
    return { 0, 5, before(line, at), 1 }
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    -- Reads the key, as in prolong.
    local time = server_time(KEYS[1], ARGV[2])
    local noted, fence = pcall(note, KEYS[2], ARGV[3], ARGV[4], time, at and line_after(line, at))
    if not noted then
        fence = type(fence) == 'table' and fence.err or fence
        local undone = redis.pcall('DEL', KEYS[1])
        return redis.error_reply(type(undone) == 'table' and 'STANDS ' .. fence or fence)
    end
    return fence
end
if redis.call('GET', KEYS[1]) == ARGV[1] then
    local fence = present_fence(KEYS[1], KEYS[2])
    return { 1, prolong(KEYS[1], ARGV[2]), fence }
end
if line and (not at or how(line, at) == '-') then
    stand(KEYS[2], line, at, me, ' ')
end
return { 0, redis.call('PTTL', KEYS[1]), before(line, at) }
