-- KEYS: key, companion.
-- Answers {owner, how long the lease still stands, {held, renewed, holder, fence}} or {}.
local held = redis.call('GET', KEYS[1])
local refusal = refused(KEYS[1], held)
if refusal or not held then
    return refusal or {}
end
-- Longer than any owner token is no token, and may be very long.
return { string.sub(held, 1, 513), redis.call('PTTL', KEYS[1]), redis.call('HMGET', KEYS[2], 'held', 'renewed', 'holder', 'fence') }
