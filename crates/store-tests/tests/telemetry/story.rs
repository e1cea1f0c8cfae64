//! An observer that writes down what becomes of each key.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::{Key, Operation};
use parking_lot::Mutex;

#[derive(Clone, Debug, Default)]
pub(crate) struct Story(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    /// By key, in the order of their first events.
    lines: Vec<(String, Vec<String>)>,
    debug: String,
}

impl Story {
    pub(crate) fn told(&self) -> Vec<String> {
        self.0.lock().lines.iter().map(|(key, events)| format!("{key}: {}", events.join(", "))).collect()
    }

    /// All events, as `Debug` shows them.
    pub(crate) fn debug(&self) -> String {
        self.0.lock().debug.clone()
    }

    /// Resolves when this line was told so far.
    pub(crate) async fn until(&self, line: &str) {
        while !self.told().iter().any(|told| told == line) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Observer for Story {
    fn observe(&self, event: &Event) {
        let mut told = self.0.lock();
        writeln!(told.debug, "{event:?}").unwrap();
        if let Some((key, what)) = line(event) {
            let index = told.lines.iter().position(|(known, _)| known == key.name()).unwrap_or_else(|| {
                told.lines.push((key.name().to_owned(), Vec::new()));
                told.lines.len() - 1
            });
            let events = &mut told.lines[index].1;
            // How often a lease is renewed is a matter of time.
            if what != "renewed" || events.last().is_none_or(|last| *last != what) {
                events.push(what);
            }
        }
    }
}

fn line(event: &Event) -> Option<(&Key, String)> {
    Some(match event {
        Event::Acquiring(it) => (&it.key, "acquiring".to_owned()),
        Event::Waiting(it) => (&it.key, "waiting".to_owned()),
        Event::WaitEnded(it) => (&it.key, "wait ended".to_owned()),
        Event::Acquired(it) => (&it.key, "acquired".to_owned()),
        Event::Contended(it) => (&it.key, "contended".to_owned()),
        Event::TimedOut(it) => (&it.key, "timed out".to_owned()),
        Event::Cancelled(it) => (&it.key, "cancelled".to_owned()),
        Event::Resumed(it) => (&it.key, "resumed".to_owned()),
        Event::Failed(it) if it.operation == Operation::Probe => return None,
        Event::Failed(it) => (it.key.as_ref()?, format!("failed {}", it.kind)),
        Event::Renewed(it) => (&it.key, "renewed".to_owned()),
        Event::Ended(it) => (&it.key, format!("ended {}", it.reason)),
        Event::Lost(it) => (&it.key, format!("lost {}", it.reason)),
        Event::Released(it) => {
            (&it.key, it.failed.map_or("released".to_owned(), |kind| format!("release failed {kind}")))
        }
        Event::Dropped(it) => (&it.key, "dropped".to_owned()),
        // A busy machine may cost a renewal; another one makes it good. Polls and requests are the store's affair.
        _ => return None,
    })
}
