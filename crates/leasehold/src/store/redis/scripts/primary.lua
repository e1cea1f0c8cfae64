-- The refusal of a server that is a replica, if that was the answer to a write.
local function as_replica(answer)
    local is_replica = type(answer) == 'table' and answer.err and string.find(answer.err, 'READONLY', 1, true)
    return is_replica and redis.error_reply('READONLY this is a replica') or nil
end

-- What a replica knows may be long past, so no key is looked at there for an answer: a write that changes nothing is
-- refused by it. `held` is what the key holds.
local function refused(key, held)
    return as_replica(redis.pcall('SET', key, '', held and 'NX' or 'XX'))
end
