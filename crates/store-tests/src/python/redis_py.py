# Takes and gives back locks by the client's own recipe, as it is told line by line.
import sys

import redis
from redis.exceptions import LockError

# Protocol 2, which every server knows.
client = redis.Redis(port=int(sys.argv[1]), protocol=2)
locks = {}


def obey(order, name):
    if order in ("try", "wait"):
        locks[name] = client.lock(name, timeout=600, blocking_timeout=120)
        return locks[name].acquire(blocking=order == "wait")
    if order == "extend":
        return locks[name].extend(600, replace_ttl=True)
    try:
        locks[name].release()
        return "released"
    except LockError:
        return "not held"


client.ping()
print("ready", flush=True)
for line in sys.stdin:
    print(obey(*line.rstrip("\n").split(" ", 1)), flush=True)
