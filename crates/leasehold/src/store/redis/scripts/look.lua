-- KEYS: key.
-- Answers with what it holds. Longer than any owner token is no token, and may be very long.
local held = redis.pcall('GET', KEYS[1])
return type(held) == 'string' and string.sub(held, 1, 513) or held
