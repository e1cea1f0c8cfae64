-- KEYS: key. ARGV: owner. For servers that cannot compare and delete by themselves.
local held = redis.call('GET', KEYS[1])
if held ~= ARGV[1] then
    return refused(KEYS[1], held) or 0
end
return redis.call('DEL', KEYS[1])
