local highest, token = redis.call('GET', KEYS[2]) or '0', ARGV[1]
-- As text, since numbers are exact up to 2^53 only: the longer one is the higher.
if #token < #highest or (#token == #highest and token < highest) then
  return 0
end
redis.call('SET', KEYS[2], token)
redis.call('SET', KEYS[1], ARGV[2])
return 1
