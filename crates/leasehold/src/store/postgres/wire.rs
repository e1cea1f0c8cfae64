//! A connection to the server as long as it stands.

use std::error::Error as StdError;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{AsyncMessage, Client, Config, Error, Notification, Row, SimpleQueryMessage, SimpleQueryRow};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::frequent::Named;
use super::sent::Sent;
use crate::clock::{Clock, Moment};
use crate::types::OwnerToken;

/// A connection on which a request was given up, and on which nothing came for this long, is replaced before the next
/// request: its peer may have vanished without a word. Far more than a round trip, and little beside a ttl.
const SILENCE: Duration = Duration::from_millis(250);

/// How often a statement is sent that the server gave up because of another one, which it says at once.
pub(super) const ATTEMPTS: u32 = 16;

/// The most that is waited before it is sent a third time, which is doubled each time, so often: who met at once would meet
/// again.
const PAUSE: (Duration, u32) = (Duration::from_millis(1), 5);

/// A parameter of a statement.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

pub(super) fn text(value: &String) -> Parameter<'_> {
    (value, Type::TEXT)
}

/// An owner token as a parameter. The driver logs the parameters of statements that have a name, as `Debug` shows them.
#[derive(Clone, Copy)]
pub(super) struct Secret<'a>(&'a [u8]);

impl<'a> Secret<'a> {
    pub(super) fn of(owner: &'a OwnerToken) -> Self {
        Self(owner.as_bytes())
    }
}

impl ToSql for Secret<'_> {
    fn to_sql(&self, is: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.0.to_sql(is, out)
    }

    fn accepts(is: &Type) -> bool {
        <&[u8]>::accepts(is)
    }

    to_sql_checked!();
}

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What is done when a connection has ended.
type AtEnd = Box<dyn FnOnce() + Send>;

/// A connection, and whether it can still be used.
pub(super) struct Wire {
    client: Client,
    pub(super) named: Named,
    may_name: AtomicBool,
    /// What its server can know it by.
    id: String,
    /// What reads it.
    task: AbortHandle,
    /// Closed when that ends.
    over: watch::Receiver<()>,
    /// What is done then; `None` = it was.
    at_end: Arc<Mutex<Option<Vec<AtEnd>>>>,
    ended: AtomicBool,
    /// When the first request was sent that was given up with no answer to anything since; 0 = there is none.
    silent_since: Arc<AtomicU64>,
}

impl Wire {
    /// Connects. What the server tells unasked goes to `heard`; `None` is the end, which may come where there is no runtime.
    pub(super) async fn connect(
        config: &Config,
        id: String,
        tls: MakeRustlsConnect,
        heard: impl FnMut(Option<Notification>) + Send + 'static,
    ) -> Result<Self, Error> {
        let (client, mut connection) = config.connect(tls).await?;
        let (reading, over) = watch::channel(());
        let at_end = Arc::new(Mutex::new(Some(Vec::new())));
        let reader = Reader { heard, at_end: Arc::clone(&at_end), _reading: reading };
        let task = tokio::spawn(async move {
            // Told before the server can see the end.
            let mut reader = reader;
            loop {
                match poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => (reader.heard)(Some(notification)),
                    Some(Ok(_)) => {}
                    // What was asked is told its failure by itself.
                    Some(Err(_)) | None => return,
                }
            }
        });
        Ok(Self {
            client,
            named: Named::default(),
            may_name: AtomicBool::new(false),
            id,
            task: task.abort_handle(),
            over,
            at_end,
            ended: AtomicBool::new(false),
            silent_since: Arc::default(),
        })
    }

    /// Runs a statement, unnamed and in one round trip, so that it works through every pooler.
    ///
    /// One that could not be applied because of another one is sent again.
    pub(super) async fn ask(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        for attempt in 1..ATTEMPTS {
            match self.ask_once(statement, parameters).await {
                Err(error) if is_in_the_way(&error) => gives_way(attempt).await,
                answer => return answer,
            }
        }
        self.ask_once(statement, parameters).await
    }

    /// Runs a statement that is worth no connection, once: where its table is missing the connection stays.
    pub(super) async fn ask_aside(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let flight = Flight::new(self);
        let answer = self.client.query_typed(statement, parameters).await;
        let is_missing = answer.as_ref().is_err_and(|error| error.code() == Some(&SqlState::UNDEFINED_TABLE));
        if is_missing { flight.answered(answer) } else { flight.landed(answer) }
    }

    /// Runs a statement as [`ask`](Self::ask), and once: what a session locks stays locked when a statement is rolled back.
    pub(super) async fn ask_once(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        self.flown(self.client.query_typed(statement, parameters)).await
    }

    /// A request that may be given up.
    pub(super) async fn flown<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let flight = Flight::new(self);
        let answer = request.await;
        flight.landed(answer)
    }

    /// Runs statements without parameters, in one transaction.
    pub(super) async fn run(&self, statements: &str) -> Result<(), Error> {
        self.flown(self.client.batch_execute(statements)).await
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// The session is ours alone as long as the connection stands.
    pub(super) fn is_ours_alone(&self) {
        self.may_name.store(true, Ordering::Release);
    }

    /// It is not, for all that was known.
    pub(super) fn name_no_more(&self) {
        self.may_name.store(false, Ordering::Release);
    }

    pub(super) fn may_name(&self) -> bool {
        self.may_name.load(Ordering::Acquire)
    }

    /// Runs statements without parameters, in one message, and answers with the last row in text. Unlike other statements
    /// they leave nothing open in the transaction that they are in, so that it sees what is there and holds up nobody.
    pub(super) async fn ask_plainly(&self, statements: &str) -> Result<Option<SimpleQueryRow>, Error> {
        let flight = Flight::new(self);
        let answer = self.client.simple_query(statements).await;
        let last = |message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        };
        Ok(flight.landed(answer)?.into_iter().filter_map(last).next_back())
    }

    pub(super) const fn id(&self) -> &String {
        &self.id
    }

    /// Whether nothing comes any more.
    pub(super) fn has_ended(&self) -> bool {
        self.client.is_closed()
    }

    pub(super) fn stands(&self) -> bool {
        !self.is_silent() && !self.ended.load(Ordering::Acquire) && !self.client.is_closed()
    }

    /// Resolves when the connection has ended.
    pub(super) fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut over = self.over.clone();
        async move { while over.changed().await.is_ok() {} }
    }

    /// Does this when the connection has ended: at once, if it has. That may be where there is no runtime.
    pub(super) fn when_over(&self, work: impl FnOnce() + Send + 'static) {
        let mut at_end = self.at_end.lock();
        if let Some(known) = &mut *at_end {
            return known.push(Box::new(work));
        }
        drop(at_end);
        work();
    }

    /// Whether a request was given up, and nothing came since.
    fn is_silent(&self) -> bool {
        self.silence().is_some_and(|silence| silence > SILENCE)
    }

    /// How long ago the first request was sent that was given up, if nothing came since.
    pub(super) fn silence(&self) -> Option<Duration> {
        let since = self.silent_since.load(Ordering::Acquire);
        (since != 0).then(|| Duration::from_nanos(Clock::system().now().as_nanos().saturating_sub(since)))
    }

    /// It is not to be used for anything new.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Ends the connection at once, whatever is under way.
    pub(super) fn cut(&self) {
        self.end();
        self.task.abort();
    }

    /// Somebody gave up a request that was sent then, and that goes on without him.
    pub(super) fn given_up(&self, sent: Moment) {
        // The oldest counts.
        if self.silent_since.compare_exchange(0, sent.as_nanos(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.listen();
        }
    }

    /// Notes when something comes again: nobody sees the answer to what was given up, but that to what is sent behind it.
    fn listen(&self) {
        // Where there is no runtime any more it stays silent, and is replaced.
        let Ok(runtime) = Handle::try_current() else { return };
        let Some(mut sent) = Sent::to(&self.client, "") else { return };
        let silent_since = Arc::clone(&self.silent_since);
        runtime.spawn(async move {
            if sent.answered().await.is_ok() {
                silent_since.store(0, Ordering::Release);
            }
        });
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Nobody is there to say goodbye to. Else the connection is ended in order, once all is answered.
        if self.is_silent() {
            self.task.abort();
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("stands", &self.stands()).finish_non_exhaustive()
    }
}

/// Who reads a connection. However that ends, also with the runtime, it is told.
struct Reader<H: FnMut(Option<Notification>)> {
    heard: H,
    at_end: Arc<Mutex<Option<Vec<AtEnd>>>>,
    _reading: watch::Sender<()>,
}

impl<H: FnMut(Option<Notification>)> Drop for Reader<H> {
    fn drop(&mut self) {
        (self.heard)(None);
        let work = self.at_end.lock().take();
        work.into_iter().flatten().for_each(|work| work());
    }
}

/// A request under way, which may be given up.
struct Flight<'a> {
    wire: &'a Wire,
    sent: Moment,
    landed: bool,
}

impl<'a> Flight<'a> {
    fn new(wire: &'a Wire) -> Self {
        Self { wire, sent: Clock::system().now(), landed: false }
    }

    fn landed<T>(self, answer: Result<T, Error>) -> Result<T, Error> {
        let wire = self.wire;
        let answer = self.answered(answer);
        if answer.as_ref().is_err_and(spoils) {
            wire.end();
        }
        answer
    }

    /// Whatever it was, the connection stands.
    fn answered<T>(mut self, answer: Result<T, Error>) -> Result<T, Error> {
        self.landed = true;
        self.wire.silent_since.store(0, Ordering::Release);
        answer
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.wire.given_up(self.sent);
        }
    }
}

/// Whether the statement was surely not applied, because another one was in its way.
pub(super) fn is_in_the_way(error: &Error) -> bool {
    error
        .code()
        .is_some_and(|code| matches!(*code, SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED))
}

/// Waits a little before the next attempt; the first repeat comes at once, for what was in the way is mostly over.
pub(super) async fn gives_way(attempt: u32) {
    if attempt > 1 {
        let most = PAUSE.0 * 2_u32.pow((attempt - 2).min(PAUSE.1));
        tokio::time::sleep(most.mul_f64(fastrand::f64())).await;
    }
}

/// Whether nothing more can be expected of the connection, or the server or its tables have to be found anew.
fn spoils(error: &Error) -> bool {
    match error.code() {
        Some(code) => {
            let elsewhere = [SqlState::READ_ONLY_SQL_TRANSACTION, SqlState::UNDEFINED_TABLE];
            elsewhere.contains(code) || code.code().starts_with("08") || code.code().starts_with("57P")
        }
        None => true,
    }
}

/// 128 bits from the operating system, which a `fork` does not repeat, as 32 digits.
pub(super) fn new_id() -> crate::error::Result<String> {
    Ok(String::from_utf8_lossy(OwnerToken::mint()?.as_bytes()).into_owned())
}
