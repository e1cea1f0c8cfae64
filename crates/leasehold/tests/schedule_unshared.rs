//! What is said of tasks that only their own process is kept from running, where that is allowed.

#![cfg(feature = "schedule")]
#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use leasehold::LockManager;
use leasehold::schedule::{Scheduler, Task};
use leasehold::store::memory::MemoryStore;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn each_task_that_only_its_own_process_is_kept_from_is_warned_of_once() {
    let warnings = Warnings::default();
    let _listens = tracing::subscriber::set_default(warnings.clone());
    let (first, second) = (LockManager::new(MemoryStore::new()), LockManager::new(MemoryStore::new()));
    let (one_server, alone, free) = (
        || Task::new("report").on_one_server(),
        || Task::new("mail").without_overlapping(Duration::from_secs(30)),
        || Task::new("free"),
    );
    Scheduler::builder(&first).task(one_server()).task(free()).allow_unshared().build().unwrap();
    let said = warnings.take();
    assert!(matches!(&said[..], [line] if line.contains("\"report\"; use a store that they share")), "{said:?}");
    // Each time it is built, on whatever store: there is nothing new to say.
    for locks in [&first, &second] {
        Scheduler::builder(locks).task(one_server()).allow_unshared().build().unwrap();
        locks
            .on_one_server("report", "2026-11-30T02:30:00Z".parse().unwrap())
            .allow_unshared()
            .run(async |_| ())
            .await
            .unwrap();
    }
    assert_eq!(warnings.take(), Vec::<String>::new());
    // Another task is named, and that one alone.
    Scheduler::builder(&first).task(one_server()).task(alone()).allow_unshared().build().unwrap();
    let said = warnings.take();
    assert!(matches!(&said[..], [line] if line.contains("\"mail\"") && !line.contains("report")), "{said:?}");
    // Where it was not allowed there is an error, and nothing that keeps a later warning from being said.
    Scheduler::builder(&first).task(Task::new("late").on_one_server()).build().unwrap_err();
    assert_eq!(warnings.take(), Vec::<String>::new());
    Scheduler::builder(&first).task(Task::new("late").on_one_server()).allow_unshared().build().unwrap();
    assert_eq!(warnings.take().len(), 1);
}
