if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local next = redis.call('LPOP', KEYS[2])
if not next then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], next, 'PX', 30000)
redis.call('PUBLISH', 'granted:' .. next, '')
return 1
