# Takes and gives back locks by the client's own recipe, as it is told line by line.
import sys

import redis
from redis.exceptions import LockError

# Protocol 2, which every server knows.
client = redis.Redis(port=int(sys.argv[1]), protocol=2)
locks = {}


def obey(order, name, ttl):
    if order in ("try", "wait"):
        locks[name] = client.lock(name, timeout=int(ttl) / 1000, blocking_timeout=120)
        return locks[name].acquire(blocking=order == "wait")
    try:
        if order == "extend":
            return locks[name].extend(int(ttl) / 1000, replace_ttl=True)
        locks[name].release()
        return True
    except LockError:
        return False


client.ping()
print("ready", flush=True)
for line in sys.stdin:
    print("yes" if obey(*line.split()) else "no", flush=True)
