//! The owner token is a secret: nothing that is written for people shows it.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

mod support {
    pub(crate) mod bent;
    pub(crate) mod rig;
}

use std::fmt::{self, Write as _};
use std::sync::Arc;

use leasehold::store::{Claim, Page, Store};
use leasehold::testkit::Fault;
use leasehold::{ErrorKind, Operation, OwnerToken, Wait};
use parking_lot::Mutex;
use support::rig::{Rig, key, secs, until_nothing_is_left};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Writes down every field of every span and event.
#[derive(Clone, Default)]
struct Capture(Arc<Mutex<String>>);

impl Visit for &Capture {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        writeln!(self.0.lock(), "{field}={value:?}").unwrap();
    }
}

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        writeln!(self.0.lock(), "span {}", span.metadata().name()).unwrap();
        span.record(&mut &*self);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut &*self);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn no_token_is_ever_shown() {
    let capture = Capture::default();
    let _logs = tracing::subscriber::set_default(capture.clone());
    let mut shown = String::new();
    let mut show = |what: &dyn fmt::Debug| writeln!(shown, "{what:?}\n{what:#?}").unwrap();

    let rig = Rig::new();
    let manager = rig.manager();
    let lock = manager.lock("k").reason("why").wait(Wait::No);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    show(&manager);
    show(&lock);
    show(&guard);
    show(&guard.handle());
    show(&rig.builder());
    show(&lock.holder().await.unwrap());
    show(&manager.list("", Page::first(10)).await.unwrap());
    show(&rig.store);
    show(&rig.store.log());
    show(&rig.memory);
    assert!(lock.acquire_within(secs(1)).await.unwrap().is_none());
    drop(guard);
    until_nothing_is_left(&manager).await;

    // Failures of every kind, with their logs.
    for fault in [Fault::lose_reply(), Fault::fail(ErrorKind::Unavailable), Fault::hang()] {
        let guard = lock.try_acquire().await.unwrap().unwrap();
        rig.store.outage(fault);
        show(&lock.try_acquire().await.unwrap_err());
        show(&guard.extend(secs(60)).await.unwrap_err());
        show(&guard.hand_over().await.unwrap_err());
        show(&guard.lost().await);
        show(&guard.check().unwrap_err());
        show(&guard.release().await.unwrap_err());
        rig.store.heal();
        until_nothing_is_left(&manager).await;
    }
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let token = guard.hand_over().await.unwrap();
    show(&token);
    let resumed = lock.resume(&token).await.unwrap();
    show(&resumed);
    show(&lock.resume(&token).await.unwrap_err());
    show(&lock.release_by(&token).await.unwrap_err());
    show(&lock.extend_by(&token, secs(60)).await.unwrap_err());
    show(&manager.force_release("k", None).await.unwrap());
    show(&resumed.lost().await);
    let foreign = OwnerToken::from_bytes(b"a value of another client").unwrap();
    show(&Claim::new(&key("k"), &foreign, secs(1)));
    show(&rig.memory.acquire(&Claim::new(&key("k"), &foreign, secs(1))).await.unwrap());
    show(&lock.try_acquire().await.unwrap());
    show(&rig.store.log());

    let logs = capture.0.lock().clone();
    assert!(logs.contains("span lock.acquire") && logs.contains("key=\"k\""), "{logs}");
    let mut owners: Vec<_> = rig.store.log().into_iter().filter_map(|call| call.owner).collect();
    assert!(owners.len() > 10 && rig.calls(Operation::Transfer) > 0);
    owners.extend([token, foreign]);
    for owner in owners {
        let bytes = format!("{:?}", owner.as_bytes());
        for secret in [owner.expose(), owner.expose().to_uppercase(), bytes.trim_matches(['[', ']']).to_owned()] {
            assert!(!shown.contains(&secret), "shown: {secret}");
            assert!(!logs.contains(&secret), "logged: {secret}");
        }
    }
}
