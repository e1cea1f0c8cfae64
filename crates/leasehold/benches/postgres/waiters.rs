//! Waiting by hand, each in a session of its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use crate::hand_over::{POLL, Waiter};
use crate::{ACQUIRE, RELEASE, TABLE};

const KEY: i64 = 4711;
/// How often those look who are notified.
const LOOK: Duration = Duration::from_secs(1);

/// A row, as in the cycles; who waits asks every now and then, or whenever it is notified.
pub(crate) struct Row {
    client: Arc<Client>,
    acquire: Statement,
    release: Statement,
    notified: Option<Arc<Notify>>,
}

impl Row {
    pub(crate) async fn polling(url: &str) -> Self {
        Self::new(crate::client(url).await, RELEASE, None).await
    }

    pub(crate) async fn notified(url: &str) -> Self {
        let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        let notified = Arc::new(Notify::new());
        let heard = Arc::clone(&notified);
        tokio::spawn(async move {
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(_) = message.unwrap() {
                    heard.notify_one();
                }
            }
        });
        client.batch_execute("LISTEN raw_leases").await.unwrap();
        let release =
            format!("WITH released AS ({RELEASE} RETURNING key) SELECT pg_notify('raw_leases', key) FROM released");
        Self::new(Arc::new(client), &release, Some(notified)).await
    }

    async fn new(client: Arc<Client>, release: &str, notified: Option<Arc<Notify>>) -> Self {
        client.batch_execute(TABLE).await.unwrap();
        let (acquire, release) = (client.prepare(ACQUIRE).await.unwrap(), client.prepare(release).await.unwrap());
        Self { client, acquire, release, notified }
    }
}

impl Waiter for Row {
    type Held = String;

    async fn acquire(&mut self) -> String {
        let token = format!("{:032x}", fastrand::u128(..));
        while self.client.query_opt(&self.acquire, &[&"handed", &token]).await.unwrap().is_none() {
            match &self.notified {
                None => tokio::time::sleep(POLL).await,
                // A lease that ends notifies nobody.
                Some(notified) => drop(tokio::time::timeout(LOOK, notified.notified()).await),
            }
        }
        token
    }

    async fn release(&mut self, token: String) {
        assert_eq!(self.client.execute(&self.release, &[&"handed", &token]).await.unwrap(), 1);
    }
}

/// The session's lock: who waits asks every now and then, or stands in the server's own line.
pub(crate) struct Session {
    client: Arc<Client>,
    lock: Statement,
    unlock: Statement,
}

impl Session {
    pub(crate) async fn connect(url: &str, polls: bool) -> Self {
        let client = crate::client(url).await;
        let lock = if polls { "SELECT pg_try_advisory_lock($1)" } else { "SELECT true FROM pg_advisory_lock($1)" };
        let lock = client.prepare(lock).await.unwrap();
        let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await.unwrap();
        Self { client, lock, unlock }
    }
}

impl Waiter for Session {
    type Held = ();

    async fn acquire(&mut self) {
        while !self.client.query_one(&self.lock, &[&KEY]).await.unwrap().get::<_, bool>(0) {
            tokio::time::sleep(POLL).await;
        }
    }

    async fn release(&mut self, (): ()) {
        assert!(self.client.query_one(&self.unlock, &[&KEY]).await.unwrap().get::<_, bool>(0));
    }
}

/// A transaction's lock, in the server's own line.
pub(crate) struct Transaction(Arc<Client>, Statement);

impl Transaction {
    pub(crate) async fn connect(url: &str) -> Self {
        let client = crate::client(url).await;
        let lock = client.prepare("SELECT pg_advisory_xact_lock($1)").await.unwrap();
        Self(client, lock)
    }
}

impl Waiter for Transaction {
    type Held = ();

    async fn acquire(&mut self) {
        self.0.batch_execute("BEGIN").await.unwrap();
        self.0.query_one(&self.1, &[&KEY]).await.unwrap();
    }

    async fn release(&mut self, (): ()) {
        self.0.batch_execute("COMMIT").await.unwrap();
    }
}
