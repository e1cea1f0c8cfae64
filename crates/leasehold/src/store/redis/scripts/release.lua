-- KEYS: key. ARGV: owner. For servers that cannot compare and delete by themselves.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
return redis.call('DEL', KEYS[1])
