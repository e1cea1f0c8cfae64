-- line, in the companion: the stores that were refused and wait, in the order in which they came. Each has eight characters
-- of its own, and one that follows: a space while it waits, a star once it was put off (refused the free key because
-- somebody was before it), a dash if it did not come when it could: it is waited for no more until it asks again.

-- The line, and where in it somebody stands. Only a companion that lasts for as long as the fencing token has one.
local function line_of(companion, me)
    if me == '' then
        return nil
    end
    local known = redis.pcall('HMGET', companion, 'fence', 'line')
    if known.err or not known[1] then
        return nil
    end
    local line = known[2] or ''
    return line, string.find(line, me, 1, true)
end

-- How many who are waited for stand before the place `at`, or before a new one.
local function before(line, at)
    local _, count = string.gsub(string.sub(line or '', 1, (at or 0) - 1), '[ *]', '')
    return count
end

-- Notes somebody at its place, or at the end. It is worth no refusal: a server that takes no writes answers as it would
-- without a line.
local function stand(companion, line, at, me, how)
    at = at or #line + 1
    line = string.sub(line, 1, at - 1) .. me .. how .. string.sub(line, at + 9)
    if #line > 9 * 256 then
        local shorter, count = string.gsub(line, '%w+%-', '', 1)
        line = count > 0 and shorter or string.sub(line, 10)
    end
    return type(redis.pcall('HSET', companion, 'line', line)) == 'number'
end

-- What follows somebody in the line.
local function how(line, at)
    return at and string.sub(line, at + 8, at + 8)
end

-- Whether somebody else is to have the free key first. Each is put off once at most, until the key was granted. The key is
-- read, so that whoever is put off is told when it is taken.
local function puts_off(key, companion, line, at, me)
    if not line or line == '' or before(line, at) == 0 or how(line, at) == '*' or redis.call('GET', key) then
        return false
    end
    return stand(companion, line, at, me, '*')
end

-- The line once the one at this place was granted the key. It is empty if nobody is waited for.
local function line_after(line, at)
    local late = string.gsub(string.sub(line, 1, at - 1), ' ', '-')
    local rest = string.gsub(late .. string.sub(line, at + 9), '%*', ' ')
    return string.find(rest, ' ', 1, true) and rest or ''
end
