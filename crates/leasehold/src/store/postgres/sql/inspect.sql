SELECT {holder} FROM {leases} WHERE key = $1 AND owner <> '' AND expires > clock_timestamp()
