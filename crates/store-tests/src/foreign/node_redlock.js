// Takes and gives back locks by the client's own recipe, as it is told line by line.
const { createInterface } = require("node:readline");
const { default: Redis } = require("ioredis");
const { default: Redlock, ExecutionError, ResourceLockedError } = require("redlock");

const clients = process.argv.slice(1).map((port) => new Redis(Number(port), "127.0.0.1"));
const once = new Redlock(clients, { retryCount: 0 });
const patient = new Redlock(clients, { retryCount: 3000, retryDelay: 40, retryJitter: 20 });
const locks = new Map();

async function obey(order, name, ttl) {
  if (order === "try" || order === "wait") {
    locks.set(name, await (order === "try" ? once : patient).acquire([name], Number(ttl)));
  } else if (order === "extend") {
    locks.set(name, await once.extend(locks.get(name), Number(ttl)));
  } else {
    await once.release(locks.get(name));
  }
}

// Whether servers have answered that somebody else holds the lock, so that no majority was left.
async function isRefusal(error) {
  if (!(error instanceof ExecutionError)) return false;
  for (const { votesAgainst } of await Promise.all(error.attempts)) {
    for (const against of votesAgainst.values()) {
      if (!(against instanceof ResourceLockedError)) return false;
    }
  }
  return true;
}

async function main() {
  await Promise.all(clients.map((client) => client.ping()));
  console.log("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    try {
      await obey(...line.split(" "));
      console.log("yes");
    } catch (error) {
      if (!(await isRefusal(error))) throw error;
      console.log("no");
    }
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
