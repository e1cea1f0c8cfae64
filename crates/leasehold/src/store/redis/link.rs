//! The one connection of a store: made when it is needed, made anew when it broke, and listened to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError,
    RedisResult, ServerErrorKind, Value,
};

use super::fault::{self, Effect};
use super::script::Call;
use super::watches::{Doubt, Watches};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// How long the server may take to be reached and to let us in, where the caller sets no limit of its own.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A connection on which a request was given up, and on which nothing came for this long, is replaced before the next
/// request: its peer may have vanished without a word. Far more than a round trip, and little beside a ttl.
const SILENCE: Duration = Duration::from_millis(250);

/// After this long without traffic the operating system asks the peer for a sign of life, three times.
const IDLE: Duration = Duration::from_secs(15);

/// Leases in doubt that are asked for at once.
const DOUBTS: usize = 256;

/// The connection of a store.
#[derive(Debug)]
pub(super) struct Link {
    with_pushes: Client,
    plain: Client,
    wire: Mutex<Option<Arc<Wire>>>,
    /// Held by whoever connects.
    connecting: tokio::sync::Mutex<()>,
    /// How many connections were made.
    connections: AtomicU64,
    is_closed: AtomicBool,
    pub(super) watches: Arc<Watches>,
}

/// A connection as long as it stands.
#[derive(Debug)]
pub(super) struct Wire {
    connection: MultiplexedConnection,
    ended: Arc<AtomicBool>,
    /// When the first request was sent that was given up with no answer to anything since; 0 = there is none.
    silent_since: AtomicU64,
    pub(super) facts: Facts,
    /// Which of the store's connections it is.
    pub(super) number: u64,
}

/// What the server lets this user do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// It tells of changes.
    pub(super) tells: bool,
    /// It tells scripts the time.
    pub(super) dates: bool,
    pub(super) removal: Removal,
}

/// How a key is deleted only if it holds a given value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// `DELIFEQ key value`.
    Delifeq,
    /// `DELEX key IFEQ value`.
    Delex,
    Script,
}

impl Link {
    /// A connection that is made when it is needed.
    pub(super) fn new(info: &ConnectionInfo) -> Result<Arc<Self>> {
        let client = |protocol| {
            let settings = info.redis_settings().clone().set_protocol(protocol);
            let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(IDLE / 3).with_retries(3);
            let tcp = info.tcp_settings().clone().set_keepalive(keepalive);
            Client::open(info.clone().set_redis_settings(settings).set_tcp_settings(tcp)).map_err(fault::connecting)
        };
        Ok(Arc::new(Self {
            with_pushes: client(ProtocolVersion::RESP3)?,
            plain: client(ProtocolVersion::RESP2)?,
            wire: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            connections: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            watches: Arc::default(),
        }))
    }

    /// The connection; a new one if there is none that is known to stand.
    pub(super) async fn wire(self: &Arc<Self>) -> Result<Arc<Wire>> {
        if let Some(wire) = self.standing() {
            return Ok(wire);
        }
        let _turn = self.connecting.lock().await;
        if let Some(wire) = self.standing() {
            return Ok(wire);
        }
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        let connecting = tokio::time::timeout(CONNECT_LIMIT, self.connect());
        let wire = connecting.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, format!("the server did not answer within {CONNECT_LIMIT:?}")))
        });
        let wire = Arc::new(wire?);
        let before = self.wire.lock().replace(Arc::clone(&wire));
        // Closed meanwhile: who closes looks after the flag is set.
        if self.is_closed.load(Ordering::Acquire) {
            self.close();
        }
        if before.is_some() {
            // Nobody told us what happened in between.
            self.doubt_all();
        }
        Ok(wire)
    }

    /// Ends the connection for good.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let wire = self.wire.lock().take();
        drop(wire);
        self.watches.all_touched();
    }

    /// Runs a script.
    pub(super) async fn run(&self, wire: &Wire, call: Call<'_>, effect: Effect) -> Result<Value> {
        let answer = match wire.ask(&call.by_hash()).await {
            Err(error) if is_unknown_script(&error) => wire.ask(&call.by_text()).await,
            answer => answer,
        };
        answer.map_err(|error| fault::of(error, effect))
    }

    /// Runs scripts at once; one answer for each.
    pub(super) async fn run_all(&self, wire: &Wire, calls: &[Call<'_>], effect: Effect) -> Result<Vec<Result<Value>>> {
        let mut answers = wire.ask_all(&in_one(calls.iter().map(Call::by_hash))).await;
        if let Ok(answers) = &mut answers {
            let unknown: Vec<_> = (0..calls.len().min(answers.len())).filter(|at| is_unknown(&answers[*at])).collect();
            if !unknown.is_empty() {
                let again = wire.ask_all(&in_one(unknown.iter().map(|at| calls[*at].by_text()))).await;
                let again = again.map_err(|error| fault::of(error, effect))?;
                unknown.into_iter().zip(again).for_each(|(at, answer)| answers[at] = answer);
            }
        }
        let answers = answers.map_err(|error| fault::of(error, effect))?;
        if answers.len() != calls.len() {
            return Err(fault::unexpected(effect));
        }
        let certain = |answer| match answer {
            Value::ServerError(error) => Err(fault::of(error.into(), effect)),
            answer => Ok(answer),
        };
        Ok(answers.into_iter().map(certain).collect())
    }

    /// Asks for one answer.
    pub(super) async fn ask(self: &Arc<Self>, command: &Cmd, effect: Effect) -> Result<Value> {
        self.wire().await?.ask(command).await.map_err(|error| fault::of(error, effect))
    }

    /// Looks once at leases that may be gone.
    pub(super) fn settle(self: &Arc<Self>, doubts: Vec<Doubt>) {
        if doubts.is_empty() {
            return;
        }
        let link = Arc::clone(self);
        // Where there is no runtime any more, nobody listens either.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                for doubts in doubts.chunks(DOUBTS) {
                    // What cannot be asked now is learned by the next renewal.
                    if link.look_at(doubts).await.is_err() {
                        return;
                    }
                }
            });
        }
    }

    async fn look_at(self: &Arc<Self>, doubts: &[Doubt]) -> Result<()> {
        let mut pipeline = redis::pipe();
        for doubt in doubts {
            pipeline.cmd("GET").arg(&*doubt.key);
        }
        let wire = self.wire().await?;
        let answers = wire.ask_all(&pipeline).await.map_err(|error| fault::of(error, Effect::Look))?;
        for (doubt, answer) in doubts.iter().zip(answers) {
            match answer {
                Value::BulkString(held) if held == doubt.owner.as_bytes() => {}
                // Not a word about the key.
                Value::ServerError(_) => {}
                _ => self.watches.lost(doubt),
            }
        }
        Ok(())
    }

    fn doubt_all(self: &Arc<Self>) {
        self.settle(self.watches.all_touched());
    }

    fn standing(&self) -> Option<Arc<Wire>> {
        self.wire.lock().clone().filter(|wire| wire.stands())
    }

    async fn connect(self: &Arc<Self>) -> Result<Wire> {
        let ended = Arc::new(AtomicBool::new(false));
        let (link, flag) = (Arc::downgrade(self), Arc::clone(&ended));
        // The limits are the caller's: whoever gives a request up drops it.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let pushed = config.clone().set_push_sender(move |push| -> Result<(), ()> {
            heard(&link, &flag, push);
            Ok(())
        });
        let connected = self.with_pushes.get_multiplexed_async_connection_with_config(&pushed).await;
        let connection = match connected {
            // A proxy that knows only the old protocol, or a user without the right to choose.
            Err(error) if speaks_only_the_old_protocol(&error) => {
                self.plain.get_multiplexed_async_connection_with_config(&config).await
            }
            connected => connected,
        };
        let mut wire = Wire {
            connection: connection.map_err(fault::connecting)?,
            ended,
            silent_since: AtomicU64::new(0),
            facts: Facts { tells: false, dates: false, removal: Removal::Script },
            number: self.connections.fetch_add(1, Ordering::Relaxed),
        };
        wire.facts = wire.find_out().await?;
        Ok(wire)
    }
}

impl Wire {
    /// What this server can do for us. Refused if it runs no scripts: they are how anything is decided in one step.
    async fn find_out(&self) -> Result<Facts> {
        let probe = redis::Script::new("return 1");
        let mut questions = redis::pipe();
        // Changes by this connection are known here; a release wakes waiters by itself.
        questions.cmd("CLIENT").arg("TRACKING").arg("ON").arg("NOLOOP");
        questions.cmd("EVAL").arg("return 1").arg(0);
        questions.cmd("EVALSHA").arg(probe.get_hash()).arg(0);
        questions.cmd("EVAL").arg("return redis.call('TIME')").arg(0);
        questions.cmd("COMMAND").arg("INFO").arg("DELIFEQ").arg("DELEX");
        let answers = self.ask_all(&questions).await.map_err(fault::connecting)?;
        let [tracking, by_text, by_hash, time, commands] =
            <[Value; 5]>::try_from(answers).map_err(|_| fault::unexpected(Effect::Look))?;
        for answer in [by_text, by_hash] {
            if let Value::ServerError(error) = answer {
                let error = RedisError::from(error);
                let may_not = error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoPerm);
                return Err(if may_not {
                    Error::new(ErrorKind::Rejected, "this user may not run scripts: add +eval +evalsha to its rights")
                        .with_source(error)
                } else {
                    fault::connecting(error)
                });
            }
        }
        let is_known = |at: usize| match &commands {
            Value::Array(commands) => matches!(commands.get(at), Some(Value::Array(info)) if !info.is_empty()),
            _ => false,
        };
        Ok(Facts {
            tells: matches!(tracking, Value::Okay),
            dates: matches!(time, Value::Array(_)),
            removal: match (is_known(0), is_known(1)) {
                (true, _) => Removal::Delifeq,
                (false, true) => Removal::Delex,
                (false, false) => Removal::Script,
            },
        })
    }

    /// Sends a command and waits for its answer; an error of the server is an error.
    pub(super) async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        let flight = Flight::new(self);
        let answer = self.connection.clone().send_packed_command(command).await;
        match flight.landed(answer)? {
            Value::ServerError(error) => {
                if error.kind() == Some(ServerErrorKind::ReadOnly) {
                    // A primary that was demoted: its name may lead to another server by now.
                    self.ended.store(true, Ordering::Release);
                }
                Err(error.into())
            }
            answer => Ok(answer),
        }
    }

    /// Sends commands at once; errors of the server stand among the answers.
    pub(super) async fn ask_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let flight = Flight::new(self);
        let answers = self.connection.clone().send_packed_commands(commands, 0, commands.len()).await;
        flight.landed(answers)
    }

    fn stands(&self) -> bool {
        let silent_since = self.silent_since.load(Ordering::Acquire);
        let is_silent =
            silent_since != 0 && Clock::system().now().as_nanos().saturating_sub(silent_since) > nanos(SILENCE);
        !is_silent && !self.ended.load(Ordering::Acquire)
    }
}

/// A request under way, which may be given up.
struct Flight<'a> {
    wire: &'a Wire,
    sent: u64,
    landed: bool,
}

impl<'a> Flight<'a> {
    fn new(wire: &'a Wire) -> Self {
        Self { wire, sent: Clock::system().now().as_nanos(), landed: false }
    }

    fn landed<T>(mut self, answer: RedisResult<T>) -> RedisResult<T> {
        self.landed = true;
        self.wire.silent_since.store(0, Ordering::Release);
        if answer.as_ref().is_err_and(breaks_the_connection) {
            self.wire.ended.store(true, Ordering::Release);
        }
        answer
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.landed {
            // The oldest counts.
            self.wire.silent_since.compare_exchange(0, self.sent, Ordering::AcqRel, Ordering::Acquire).ok();
        }
    }
}

/// What comes without having been asked for.
fn heard(link: &Weak<Link>, ended: &AtomicBool, push: PushInfo) {
    match push.kind {
        PushKind::Disconnection => {
            ended.store(true, Ordering::Release);
            if let Some(link) = link.upgrade() {
                // Whoever waits asks again, and so connects.
                link.watches.all_touched();
            }
        }
        PushKind::Invalidate => {
            let Some(link) = link.upgrade() else { return };
            match push.data.into_iter().next() {
                Some(Value::Array(keys)) => {
                    let keys = keys.iter().filter_map(|key| match key {
                        Value::BulkString(key) => std::str::from_utf8(key).ok(),
                        _ => None,
                    });
                    let doubts = keys.filter_map(|key| link.watches.touched(key)).collect();
                    link.settle(doubts);
                }
                // The server forgot everything, or whom it was to tell what.
                _ => link.doubt_all(),
            }
        }
        _ => {}
    }
}

fn in_one(commands: impl Iterator<Item = Cmd>) -> Pipeline {
    let mut pipeline = redis::pipe();
    commands.for_each(|command| {
        pipeline.add_command(command);
    });
    pipeline
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

fn is_unknown(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

fn speaks_only_the_old_protocol(error: &RedisError) -> bool {
    match error.kind() {
        redis::ErrorKind::RESP3NotSupported => true,
        redis::ErrorKind::Server(ServerErrorKind::NoPerm) => true,
        _ => error.code() == Some("NOPROTO"),
    }
}

/// Whether nothing more can be expected of the connection.
fn breaks_the_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error() || error.kind() == redis::ErrorKind::Parse
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
