-- What a replica knows may be long past, so no key is looked at there for an answer: a write that changes nothing is
-- refused by it. `held` is what the key holds.
local function refused(key, held)
    local answer = redis.pcall('SET', key, '', held and 'NX' or 'XX')
    local is_replica = type(answer) == 'table' and answer.err and string.find(answer.err, 'READONLY', 1, true)
    return is_replica and redis.error_reply('READONLY this is a replica') or nil
end
