//! Waiting by hand, each on a connection of its own.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, Script};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::RAW_RELEASE;
use crate::hand_over::{POLL, Waiter};

/// What most people write: it asks every now and then.
pub(crate) struct Polling {
    connection: MultiplexedConnection,
    release: Script,
}

impl Polling {
    pub(crate) async fn connect(url: &str) -> Self {
        Self { connection: crate::connection(url).await, release: Script::new(RAW_RELEASE) }
    }
}

impl Waiter for Polling {
    type Held = String;

    async fn acquire(&mut self) -> String {
        let token = crate::token();
        let mut set = redis::cmd("SET");
        set.arg("polled").arg(&token).arg("NX").arg("PX").arg(30_000);
        while !set.query_async::<bool>(&mut self.connection).await.unwrap() {
            tokio::time::sleep(POLL).await;
        }
        token
    }

    async fn release(&mut self, token: String) {
        let released: u8 = self.release.key("polled").arg(token).invoke_async(&mut self.connection).await.unwrap();
        assert_eq!(released, 1);
    }
}

/// The releaser gives the lock to the first in a list and tells it. Not crash-safe: it may be one who is gone.
pub(crate) struct Queue {
    connection: MultiplexedConnection,
    pushed: UnboundedReceiver<PushInfo>,
    name: String,
    take: Script,
    pass_on: Script,
}

impl Queue {
    pub(crate) async fn connect(url: &str) -> Self {
        let (sender, pushed) = unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let client = Client::open(format!("{url}?protocol=resp3")).unwrap();
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        let name = crate::token();
        connection.subscribe(format!("granted:{name}")).await.unwrap();
        let take = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return 1 end \
                    redis.call('RPUSH', KEYS[2], ARGV[1]) return 0";
        Self { connection, pushed, name, take: Script::new(take), pass_on: Script::new(include_str!("pass_on.lua")) }
    }
}

impl Waiter for Queue {
    type Held = ();

    async fn acquire(&mut self) {
        let take = &self.take;
        let is_granted: bool =
            take.key("queued").key("queue").arg(&self.name).invoke_async(&mut self.connection).await.unwrap();
        if !is_granted {
            while self.pushed.recv().await.unwrap().kind != PushKind::Message {}
        }
    }

    async fn release(&mut self, (): ()) {
        let pass_on = &self.pass_on;
        let released: u8 =
            pass_on.key("queued").key("queue").arg(&self.name).invoke_async(&mut self.connection).await.unwrap();
        assert_eq!(released, 1);
    }
}

/// The lock is the one element of a list, and the server keeps the line. Nothing ends it when its holder is gone.
pub(crate) struct Popped(MultiplexedConnection);

impl Popped {
    pub(crate) async fn connect(url: &str) -> Self {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        let seed = "if redis.call('SET', 'seeded', 1, 'NX') then redis.call('RPUSH', 'popped', 1) end";
        redis::cmd("EVAL").arg(seed).arg(0).exec_async(&mut connection).await.unwrap();
        Self(connection)
    }
}

impl Waiter for Popped {
    type Held = ();

    async fn acquire(&mut self) {
        redis::cmd("BLPOP").arg("popped").arg(0).exec_async(&mut self.0).await.unwrap();
    }

    async fn release(&mut self, (): ()) {
        redis::cmd("RPUSH").arg("popped").arg(1).exec_async(&mut self.0).await.unwrap();
    }
}
