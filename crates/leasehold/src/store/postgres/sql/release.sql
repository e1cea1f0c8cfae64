-- A release that is lost with the server's last moments costs time and no more, so it does not wait for the disk.
UPDATE {leases} SET owner = '', expires = clock_timestamp(), holder = ''
WHERE {is_here} AND key = $1 AND owner = $2 AND expires > clock_timestamp() AND {without_flush}
RETURNING true
