-- line, in the companion: those who were refused and wait, in the order in which they came. Each has eight characters of
-- its own, followed by a space, or by a star once it was put off: refused the free key because somebody was before it.

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

-- Notes the line. It is worth no refusal: a server that takes no writes answers as it would without one.
local function keep_line(companion, line)
    -- Whoever stands in front of so many others most likely is there no more.
    if #line > 9 * 256 then
        line = string.sub(line, 10)
    end
    return type(redis.pcall('HSET', companion, 'line', line)) == 'number'
end

-- Whether somebody else is to have the free key first. Each is put off once at most, until the key was granted.
-- The key is read, so that whoever is put off is told when it is taken.
local function puts_off(key, companion, line, at, me)
    local is_turn = not line or line == '' or at == 1 or (at and string.sub(line, at + 8, at + 8) == '*')
    if is_turn or redis.call('GET', key) then
        return false
    end
    local before, behind = line, ''
    if at then
        before, behind = string.sub(line, 1, at - 1), string.sub(line, at + 9)
    end
    return keep_line(companion, before .. me .. '*' .. behind)
end

-- The line behind the one who was granted the key. Whoever stood before it and was not put off had its time to come.
local function line_after(line, at)
    local before = string.gsub(string.sub(line, 1, at - 1), '%w+ ', '')
    return (string.gsub(before .. string.sub(line, at + 9), '*', ' '))
end
