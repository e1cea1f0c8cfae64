-- KEYS: key, companion.
-- Answers {owner, how long the lease still stands, {owner, since, renewed, holder, fence} of the companion} or {}.
local held = redis.call('GET', KEYS[1])
if not held then
    return {}
end
return {
    held,
    redis.call('PTTL', KEYS[1]),
    redis.call('HMGET', KEYS[2], 'owner', 'since', 'renewed', 'holder', 'fence'),
}
