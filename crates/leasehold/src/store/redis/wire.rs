//! A connection to one server as long as it stands.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo,
    RedisError, RedisResult, ServerErrorKind, Value,
};

use super::fault::{self, Effect};
use super::link::Replicas;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// A connection on which a request was given up, and on which nothing came for this long, is replaced before the next
/// request: its peer may have vanished without a word. Far more than a round trip, and little beside a ttl. Where a
/// round trip took longer, three of them, up to the second number.
const SILENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// After this long without traffic the operating system asks the peer for a sign of life, three times.
const IDLE: Duration = Duration::from_secs(15);

/// A connection, and whether it can still be used.
#[derive(Debug)]
pub(super) struct Wire {
    connection: MultiplexedConnection,
    ended: Arc<AtomicBool>,
    /// When the first request was sent that was given up with no answer to anything since; 0 = there is none.
    silent_since: AtomicU64,
    /// How long nothing may come then.
    silence: Duration,
    /// How often replicas were waited for, and what came of it last.
    waits: AtomicU64,
    last_wait: tokio::sync::Mutex<Option<Wait>>,
    pub(super) facts: Facts,
}

/// What came of waiting for replicas.
#[derive(Clone, Debug)]
struct Wait {
    turn: u64,
    limit: Duration,
    known: Value,
}

/// What the server lets this user do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// It tells of changes.
    pub(super) tells: bool,
    /// It grants nothing. Where we may not ask, the first request that changes something tells.
    pub(super) is_replica: bool,
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

impl Wire {
    /// Connects to a server that people call `name`. Everything that it tells unasked goes to `heard`, with a flag to
    /// raise when it is the end of the connection.
    pub(super) async fn connect(
        info: &ConnectionInfo,
        name: &str,
        heard: impl Fn(&AtomicBool, PushInfo) + Send + Sync + 'static,
    ) -> Result<Self> {
        // A caller's client has come by no address of ours.
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            choose_encryption();
        }
        let failed = |error| fault::connecting(error, name);
        let client = |protocol| {
            let settings = info.redis_settings().clone().set_protocol(protocol);
            let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(IDLE / 3).with_retries(3);
            let tcp = info.tcp_settings().clone().set_keepalive(keepalive);
            Client::open(info.clone().set_redis_settings(settings).set_tcp_settings(tcp)).map_err(failed)
        };
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        // The limits are the caller's: whoever gives a request up drops it.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let pushed = config.clone().set_push_sender(move |push| -> Result<(), ()> {
            heard(&flag, push);
            Ok(())
        });
        let connected = client(ProtocolVersion::RESP3)?.get_multiplexed_async_connection_with_config(&pushed).await;
        let (connection, has_pushes) = match connected {
            // A proxy that knows only the old protocol, or a user without the right to choose.
            Err(error) if speaks_only_the_old_protocol(&error) => {
                (client(ProtocolVersion::RESP2)?.get_multiplexed_async_connection_with_config(&config).await, false)
            }
            connected => (connected, true),
        };
        let mut wire = Self {
            connection: connection.map_err(failed)?,
            ended,
            silent_since: AtomicU64::new(0),
            silence: SILENCE.0,
            waits: AtomicU64::new(0),
            last_wait: tokio::sync::Mutex::default(),
            facts: Facts { tells: false, is_replica: false, removal: Removal::Script },
        };
        let sent = Clock::system().now();
        wire.facts = wire.find_out(name).await?;
        wire.silence = (3 * Clock::system().now().since(sent)).clamp(SILENCE.0, SILENCE.1);
        // The old protocol accepts the wish to be told, and tells nothing.
        wire.facts.tells &= has_pushes;
        Ok(wire)
    }

    /// What this server can do for us. Refused if it runs no scripts, which are how anything is decided in one step.
    async fn find_out(&self, name: &str) -> Result<Facts> {
        let probe = redis::Script::new("return 1");
        let mut questions = redis::pipe();
        // Changes by this connection are known here; a release wakes waiters by itself.
        questions.cmd("CLIENT").arg("TRACKING").arg("ON").arg("NOLOOP");
        questions.cmd("EVAL").arg("return 1").arg(0);
        questions.cmd("EVALSHA").arg(probe.get_hash()).arg(0);
        questions.cmd("COMMAND").arg("INFO").arg("DELIFEQ").arg("DELEX");
        questions.cmd("ROLE");
        let answers = self.ask_all(&questions).await.map_err(|error| fault::connecting(error, name))?;
        let [tracking, by_text, by_hash, commands, role] =
            <[Value; 5]>::try_from(answers).map_err(|_| fault::unexpected(Effect::Look))?;
        for answer in [by_text, by_hash] {
            let error = match answer {
                Value::Int(1) => continue,
                Value::ServerError(error) => RedisError::from(error),
                _ => return Err(fault::unexpected(Effect::Look)),
            };
            let may_not = error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoPerm);
            return Err(if may_not {
                Error::new(ErrorKind::Rejected, "this user may not run scripts: add +eval +evalsha to its rights")
                    .with_source(error)
            } else {
                fault::connecting(error, name)
            });
        }
        let item = |answer: &Value, at: usize| match answer {
            Value::Array(items) => items.get(at).cloned().unwrap_or(Value::Nil),
            _ => Value::Nil,
        };
        let is_known = |at| matches!(item(&commands, at), Value::Array(info) if !info.is_empty());
        Ok(Facts {
            tells: matches!(tracking, Value::Okay),
            is_replica: is_replica(Some(role)),
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
        let answer = flight.landed(answer)?;
        self.end_if_demoted(&answer);
        match answer {
            Value::ServerError(error) => Err(error.into()),
            answer => Ok(answer),
        }
    }

    /// Sends commands at once; errors of the server stand among the answers.
    pub(super) async fn ask_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let flight = Flight::new(self);
        let answers = self.connection.clone().send_packed_commands(commands, 0, commands.len()).await;
        let answers = flight.landed(answers)?;
        answers.iter().for_each(|answer| self.end_if_demoted(answer));
        Ok(answers)
    }

    /// Waits until replicas know all that was answered on this connection so far; answers with their number, or with the
    /// server's refusal. That blocks the connection, so whoever comes meanwhile shares the next wait.
    pub(super) async fn wait_for(&self, replicas: Replicas) -> RedisResult<Value> {
        let before = self.waits.load(Ordering::Acquire);
        let mut last = self.last_wait.lock().await;
        if let Some(last) = last.as_ref().filter(|last| last.turn > before && last.limit >= replicas.limit) {
            return Ok(last.known.clone());
        }
        let turn = self.waits.fetch_add(1, Ordering::AcqRel) + 1;
        let mut question = redis::pipe();
        question.add_command(replicas.command());
        let known = self.ask_all(&question).await?.pop().unwrap_or(Value::Nil);
        *last = Some(Wait { turn, limit: replicas.limit, known: known.clone() });
        Ok(known)
    }

    /// As [`ask_all`](Self::ask_all) for what a replica would answer, too, and must not.
    pub(super) async fn look(&self, mut questions: Pipeline) -> RedisResult<Vec<Value>> {
        questions.cmd("ROLE");
        let mut answers = self.ask_all(&questions).await?;
        if is_replica(answers.pop()) {
            self.end();
            return Err(RedisError::from((ServerErrorKind::ReadOnly.into(), "this is a replica")));
        }
        Ok(answers)
    }

    /// A primary that was demoted: its name may lead to another server by now.
    fn end_if_demoted(&self, answer: &Value) {
        let Value::ServerError(error) = answer else { return };
        // Up to version 7.0 a script's own errors have no code of their own.
        let in_script = || error.details().is_some_and(|text| text.contains("-READONLY "));
        if error.kind() == Some(ServerErrorKind::ReadOnly) || in_script() {
            self.end();
        }
    }

    pub(super) fn stands(&self) -> bool {
        let silent_since = self.silent_since.load(Ordering::Acquire);
        let is_silent =
            silent_since != 0 && Clock::system().now().as_nanos().saturating_sub(silent_since) > nanos(self.silence);
        !is_silent && !self.ended.load(Ordering::Acquire)
    }

    /// It is not to be used for anything new.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
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
            self.wire.end();
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

/// Makes sure that there is somebody to encrypt. Whoever uses this library may have chosen another one before.
pub(super) fn choose_encryption() {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        rustls::crypto::ring::default_provider().install_default().ok();
    });
}

/// What a server says of its role. Where we may not ask, it is taken for a primary.
fn is_replica(role: Option<Value>) -> bool {
    let Some(Value::Array(role)) = role else { return false };
    let role = role.into_iter().next().map(redis::from_redis_value::<String>);
    role.is_some_and(|role| role.is_ok_and(|role| role != "master"))
}

fn speaks_only_the_old_protocol(error: &RedisError) -> bool {
    match error.kind() {
        redis::ErrorKind::RESP3NotSupported => true,
        redis::ErrorKind::Server(ServerErrorKind::NoPerm) => true,
        _ if error.code() == Some("NOPROTO") => true,
        _ => error.detail().is_some_and(|text| text.to_ascii_lowercase().starts_with("unknown command")),
    }
}

/// Whether nothing more can be expected of the connection.
fn breaks_the_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error() || error.kind() == redis::ErrorKind::Parse
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
