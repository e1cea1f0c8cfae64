//! The way to one server: a connection that is made when it is needed, made anew when it broke, and listened to.

use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, Pipeline, PushInfo, PushKind, RedisResult, ServerErrorKind, Value};
use tokio::sync::oneshot;

use super::answer;
use super::fault::{self, Effect};
use super::script::{self, Argument, Call};
use super::sentinel::Sentinels;
use super::wire::{Removal, Wire};
use crate::error::{Error, ErrorKind, Result};
use crate::store::watches::{Doubt, Watches};
use crate::types::OwnerToken;

/// How long the server may take to be reached and to let us in, where the caller sets no limit of its own.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long the server may take to tell of leases in doubt: as much as the engine allows a call.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Leases in doubt that are asked for at once.
const DOUBTS: usize = 256;

/// Where a server is to be found.
#[derive(Debug)]
pub(super) enum Place {
    Server(ConnectionInfo),
    /// One of a cluster, which by itself grants nothing where it is no primary.
    Member(ConnectionInfo),
    Sentinels(Sentinels),
}

/// The way to a server.
#[derive(Debug)]
pub(super) struct Link {
    place: Place,
    wire: Mutex<Option<Arc<Wire>>>,
    /// Held by whoever connects.
    connecting: tokio::sync::Mutex<()>,
    /// How many connections were made.
    connections: AtomicU64,
    /// Held by an attempt to connect that nobody waits for.
    late: tokio::sync::Mutex<()>,
    is_closed: AtomicBool,
    watches: Arc<Watches>,
}

/// An answer, or the server's or the connection's error; the outer error means that nothing was sent.
pub(super) type Answer<T = Value> = Result<RedisResult<T>>;

/// What is asked of whoever keeps a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request<'a> {
    Run(Call<'a>),
    /// Runs a script and waits until replicas know what it did. Answers with its answer and their number.
    RunAndWait(Call<'a>, Replicas),
    /// Deletes a key if it holds this owner's token.
    Delete(&'a str, &'a OwnerToken),
}

/// How many replicas have to know of a grant, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replicas {
    pub(super) count: u32,
    pub(super) limit: Duration,
}

impl Replicas {
    pub(super) fn command(self) -> Cmd {
        let mut command = redis::cmd("WAIT");
        // Zero would be for ever.
        command.arg(self.count).arg(self.limit.as_millis().max(1).to_string());
        command
    }
}

impl Request<'_> {
    pub(super) fn key(&self) -> &str {
        match self {
            Self::Run(call) | Self::RunAndWait(call, _) => call.key(),
            Self::Delete(key, _) => key,
        }
    }
}

impl Link {
    /// A way that nobody has gone yet.
    pub(super) fn to(place: Place, watches: &Arc<Watches>) -> Arc<Self> {
        Arc::new(Self {
            place,
            wire: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            connections: AtomicU64::new(0),
            late: tokio::sync::Mutex::new(()),
            is_closed: AtomicBool::new(false),
            watches: Arc::clone(watches),
        })
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
        let (tell, told) = oneshot::channel();
        tokio::spawn(Arc::clone(self).make(tell));
        told.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the runtime ends")))
    }

    /// Makes a connection, also when nobody waits for it any more: that may take longer than a request has time for,
    /// and the next one is glad of it.
    async fn make(self: Arc<Self>, mut tell: oneshot::Sender<Result<Arc<Wire>>>) {
        let limited = tokio::time::timeout(CONNECT_LIMIT, self.connect());
        tokio::pin!(limited);
        let connected = tokio::select! {
            connected = &mut limited => connected,
            () = tell.closed() => {
                // One at most, and only for a store that is still there.
                let Ok(_only) = self.late.try_lock() else { return };
                if Arc::strong_count(&self) == 1 {
                    return;
                }
                limited.await
            }
        };
        let wire = connected.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, format!("{} did not answer within {CONNECT_LIMIT:?}", self.name())))
        });
        tell.send(wire.map(|wire| self.adopt(wire))).ok();
    }

    /// Uses this connection from now on, unless another was quicker.
    fn adopt(self: &Arc<Self>, wire: Wire) -> Arc<Wire> {
        let wire = Arc::new(wire);
        self.connections.fetch_add(1, Ordering::AcqRel);
        let before = {
            let mut present = self.wire.lock();
            if let Some(standing) = present.as_ref().filter(|present| present.stands()) {
                return Arc::clone(standing);
            }
            present.replace(Arc::clone(&wire))
        };
        // Closed meanwhile: who closes looks after the flag is set.
        if self.is_closed.load(Ordering::Acquire) {
            self.close();
        }
        if before.is_some() {
            // Nobody told us what happened in between.
            self.doubt_all();
        }
        wire
    }

    /// How many connections were made so far; the present one counts from before its first request.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }

    /// Ends the connection for good.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let wire = self.wire.lock().take();
        drop(wire);
        self.watches.all_touched();
    }

    /// The server's host, if it has one.
    pub(super) fn host(&self) -> Option<String> {
        match &self.place {
            Place::Server(info) | Place::Member(info) => match info.addr() {
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host.clone()),
                _ => None,
            },
            Place::Sentinels(_) => None,
        }
    }

    /// How people call the server: host and port, or the path.
    pub(super) fn name(&self) -> String {
        match &self.place {
            Place::Server(info) | Place::Member(info) => info.addr().to_string(),
            Place::Sentinels(sentinels) => sentinels.to_string(),
        }
    }

    pub(super) async fn send(self: &Arc<Self>, request: &Request<'_>) -> Answer {
        match request {
            Request::Run(call) => self.run(call).await,
            Request::RunAndWait(call, replicas) => self.run_and_wait(call, *replicas).await,
            Request::Delete(key, owner) => self.delete(key, owner).await,
        }
    }

    /// Sends what concerns a key that is on its way to this server.
    pub(super) async fn send_asking(self: &Arc<Self>, request: &Request<'_>) -> Answer {
        let asking = Some(redis::cmd("ASKING"));
        match request {
            Request::Run(call) => self.run_between(asking, call, None).await,
            Request::RunAndWait(call, replicas) => self.run_between(asking, call, Some(replicas.command())).await,
            Request::Delete(key, owner) => {
                self.run_between(asking, &release(&[key], &[Argument::Bytes(owner.as_bytes())]), None).await
            }
        }
    }

    async fn run(self: &Arc<Self>, call: &Call<'_>) -> Answer {
        let wire = self.wire().await?;
        Ok(run_on(&wire, call).await)
    }

    /// Waits only once there is something to know of: a server that has yet to be told the script would make us wait
    /// twice, and somebody else's lease is no reason to.
    async fn run_and_wait(self: &Arc<Self>, call: &Call<'_>, replicas: Replicas) -> Answer {
        let wire = self.wire().await?;
        let answer = match run_on(&wire, call).await {
            Ok(answer) if answer::is_grant(&answer) => answer,
            Ok(answer) => return Ok(Ok(Value::Array(vec![answer, Value::Int(0)]))),
            Err(error) => return Ok(Err(error)),
        };
        Ok(wire.wait_for(replicas).await.map(|known| Value::Array(vec![answer, known])))
    }

    /// Runs a script right after one command and right before another; answers with the script's answer and the last.
    async fn run_between(self: &Arc<Self>, before: Option<Cmd>, call: &Call<'_>, after: Option<Cmd>) -> Answer {
        let wire = self.wire().await?;
        let at = usize::from(before.is_some());
        for command in [call.by_hash(), call.by_text()] {
            let commands = before.iter().cloned().chain([command]).chain(after.clone());
            let mut answers = match wire.ask_all(&in_one(commands)).await {
                Ok(answers) => answers,
                Err(error) => return Ok(Err(error)),
            };
            if answers.len() <= at {
                break;
            }
            // Without this command the other one is told to go back where it came from.
            if let Some(Value::ServerError(error)) = answers[..at].first() {
                return Ok(Err(error.clone().into()));
            }
            match (answers.swap_remove(at), &after) {
                (answer, _) if is_unknown(&answer) => {}
                (Value::ServerError(error), _) => return Ok(Err(error.into())),
                (answer, None) => return Ok(Ok(answer)),
                (answer, Some(_)) => return Ok(Ok(Value::Array(vec![answer, answers.pop().unwrap_or(Value::Nil)]))),
            }
        }
        Err(fault::unexpected(Effect::Change))
    }

    /// Runs scripts at once; one answer for each, errors of the server among them.
    pub(super) async fn run_all(self: &Arc<Self>, calls: &[Call<'_>]) -> Answer<Vec<Value>> {
        let wire = self.wire().await?;
        let mut answers = wire.ask_all(&in_one(calls.iter().map(|call| call.by_hash()))).await;
        if let Ok(answers) = &mut answers {
            let unknown: Vec<_> = (0..calls.len().min(answers.len())).filter(|at| is_unknown(&answers[*at])).collect();
            if !unknown.is_empty() {
                match wire
                    .ask_all(&in_one(unknown.iter().enumerate().map(|(turn, at)| {
                        // The first one tells the server the script.
                        if turn == 0 { calls[*at].by_text() } else { calls[*at].by_hash() }
                    })))
                    .await
                {
                    Ok(again) => unknown.into_iter().zip(again).for_each(|(at, answer)| answers[at] = answer),
                    Err(error) => return Ok(Err(error)),
                }
            }
        }
        Ok(answers)
    }

    async fn delete(self: &Arc<Self>, key: &str, owner: &OwnerToken) -> Answer {
        let wire = self.wire().await?;
        let mut command = match wire.facts.removal {
            Removal::Delifeq => redis::cmd("DELIFEQ"),
            Removal::Delex => redis::cmd("DELEX"),
            Removal::Script => return self.run(&release(&[key], &[Argument::Bytes(owner.as_bytes())])).await,
        };
        command.arg(key);
        if wire.facts.removal == Removal::Delex {
            command.arg("IFEQ");
        }
        match wire.ask(command.arg(owner.as_bytes())).await {
            // Not among this user's rights: what the script needs is.
            Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoPerm) => {
                self.run(&release(&[key], &[Argument::Bytes(owner.as_bytes())])).await
            }
            answer => Ok(answer),
        }
    }

    /// Asks for one answer that changes nothing, of a primary.
    pub(super) async fn ask(self: &Arc<Self>, command: Cmd) -> Result<Value> {
        let answers = self.wire().await?.look(in_one(iter::once(command))).await;
        match answers.map_err(|error| fault::of(error, Effect::Look))?.pop() {
            Some(Value::ServerError(error)) => Err(fault::of(error.into(), Effect::Look)),
            Some(answer) => Ok(answer),
            None => Err(fault::unexpected(Effect::Look)),
        }
    }

    /// Whether nobody holds the key. The server tells of the next change from then on.
    pub(super) async fn is_free(self: &Arc<Self>, key: &str) -> Result<bool> {
        Ok(self.ask(look(key)).await? == Value::Nil)
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
                    let looked = tokio::time::timeout(LOOK_LIMIT, link.look_at(doubts)).await;
                    // What cannot be asked now is learned by the next renewal.
                    if !matches!(looked, Ok(Ok(()))) {
                        return;
                    }
                }
            });
        }
    }

    async fn look_at(self: &Arc<Self>, doubts: &[Doubt]) -> Result<()> {
        let mut open = doubts.to_vec();
        while !open.is_empty() {
            let wire = self.wire().await?;
            let questions = self.watches.questions(&open);
            open.clear();
            if questions.is_empty() {
                break;
            }
            let pipeline = in_one(questions.iter().map(|question| look(&question.doubt.key)));
            let answers = wire.look(pipeline).await.map_err(|error| fault::of(error, Effect::Look))?;
            for (question, answer) in questions.iter().zip(answers) {
                match answer {
                    Value::BulkString(held) if held == question.doubt.owner.as_bytes() => {}
                    // Not a word about the key, unless it says that it is something else by now.
                    Value::ServerError(error) if error.code() != "WRONGTYPE" => {}
                    _ => open.extend(self.watches.lost(question)),
                }
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
        let found;
        let info = match &self.place {
            Place::Server(info) | Place::Member(info) => info,
            Place::Sentinels(sentinels) => {
                found = sentinels.primary().await?;
                &found
            }
        };
        let link = Arc::downgrade(self);
        let connected = Wire::connect(info, &self.name(), move |ended, push| heard(&link, ended, push)).await?;
        match self.place {
            Place::Server(_) if connected.facts.is_replica => {
                Err(Error::new(ErrorKind::Rejected, format!("{} is a replica: name the primary", self.name())))
            }
            // Word of the failover has not reached them.
            Place::Sentinels(_) if connected.facts.is_replica => Err(Error::new(
                ErrorKind::Unavailable,
                format!("the server that was {} is a replica by now: try again soon", self.name()),
            )),
            _ => Ok(connected),
        }
    }
}

/// What comes without having been asked for.
fn heard(link: &Weak<Link>, ended: &AtomicBool, push: PushInfo) {
    if push.kind == PushKind::Disconnection {
        ended.store(true, Ordering::Release);
    }
    let Some(link) = link.upgrade() else { return };
    match push.kind {
        // Whoever waits asks again, and so connects; so do we at once if a lease is held.
        PushKind::Disconnection => link.doubt_all(),
        PushKind::Invalidate => match push.data.into_iter().next() {
            Some(Value::Array(keys)) => {
                let keys = keys.iter().filter_map(|key| match key {
                    Value::BulkString(key) => std::str::from_utf8(key).ok(),
                    _ => None,
                });
                let doubts = keys.flat_map(|key| link.watches.touched(key)).collect();
                link.settle(doubts);
            }
            // The server forgot everything, or whom it was to tell what.
            _ => link.doubt_all(),
        },
        _ => {}
    }
}

async fn run_on(wire: &Wire, call: &Call<'_>) -> RedisResult<Value> {
    match wire.ask(&call.by_hash()).await {
        Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => {
            wire.ask(&call.by_text()).await
        }
        answer => answer,
    }
}

fn release<'a>(keys: &'a [&'a str], owner: &'a [Argument<'a>]) -> Call<'a> {
    script::RELEASE.on(keys, owner)
}

/// What a key holds, or the beginning of it. Told in full, since it is short and a server may have forgotten it.
fn look(key: &str) -> Cmd {
    script::LOOK.on(&[key], &[]).by_text()
}

fn in_one(commands: impl Iterator<Item = Cmd>) -> Pipeline {
    let mut pipeline = redis::pipe();
    commands.for_each(|command| {
        pipeline.add_command(command);
    });
    pipeline
}

fn is_unknown(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}
