//! Whether those whom leases are tied to are gone for good.
//!
//! Gone is only what is surely gone: every doubt counts as alive, and costs no more than a wait for the ttl. What is
//! gone stays gone, so a look taken before a transaction holds in it for as long as the row is the same.

use std::collections::HashMap;

use super::host::{Host, TieFacts};
use super::processes::{Processes, Seen, is_own_proc};
use super::row::Row;

/// One look at the holders of leases. Nobody is looked at twice.
#[derive(Debug)]
pub(super) struct Look<'a> {
    host: &'a Host,
    processes: Processes,
    /// Whether `/proc` tells of the processes that the ties of this pid namespace name.
    is_own_proc: Option<bool>,
    gone: HashMap<TieFacts, bool>,
}

impl<'a> Look<'a> {
    pub(super) fn new(host: &'a Host) -> Self {
        Self { host, processes: Processes::since_boot(host.offset), is_own_proc: None, gone: HashMap::new() }
    }

    /// Whether the lease in this row can be taken over at once. Reads `/proc`, so it is called outside a transaction.
    pub(super) fn is_gone(&mut self, row: &Row) -> bool {
        row.boot == self.host.boot && self.is_tied_to_the_gone(&row.tie)
    }

    /// The same for the tie of a lease of this boot.
    pub(super) fn is_tied_to_the_gone(&mut self, tie: &TieFacts) -> bool {
        // In another pid namespace the same number names another process.
        if tie.kind == TieFacts::NOTHING
            || tie.pid_namespace.is_none()
            || tie.pid_namespace != self.host.pid_namespace
            || !*self.is_own_proc.get_or_insert_with(is_own_proc)
        {
            return false;
        }
        if let Some(&known) = self.gone.get(tie) {
            return known;
        }
        let is_gone = is_gone(tie, &self.processes);
        self.gone.insert(tie.clone(), is_gone);
        is_gone
    }
}

/// What can be seen of the processes of this pid namespace.
pub(super) trait Sight {
    /// `false` = there surely is none with this number.
    fn may_have_process(&self, id: u32) -> bool;
    /// `false` = there surely is no process in this group.
    fn may_have_group(&self, id: u32) -> bool;
    /// The process with this number; `None` = it cannot be seen.
    fn process(&self, id: u32) -> Option<Seen>;
    /// The processes of this group that stand in the list at one time or another while it is read; `None` = some may
    /// be hidden, or one went away unseen.
    fn members(&self, group: u32) -> Option<Vec<Seen>>;
}

fn is_gone(tie: &TieFacts, sight: &impl Sight) -> bool {
    let Some(id) = tie.id.and_then(|id| u32::try_from(id).ok()) else {
        return false;
    };
    match tie.kind {
        TieFacts::PROCESS => is_process_gone(id, tie.start, sight),
        TieFacts::GROUP => is_group_gone(id, tie.start, sight),
        _ => false,
    }
}

fn is_process_gone(id: u32, start: Option<i64>, sight: &impl Sight) -> bool {
    !sight.may_have_process(id) || sight.process(id).is_some_and(|seen| seen.is_dead() || is_later(start, &seen))
}

fn is_group_gone(id: u32, start: Option<i64>, sight: &impl Sight) -> bool {
    if !sight.may_have_group(id) {
        return true;
    }
    match sight.process(id) {
        // The kernel gives no number to a new process while a group still has it.
        Some(leader) if is_later(start, &leader) => true,
        Some(leader) if leader.group == id && !leader.is_dead() => false,
        _ => has_only_the_dead(id, sight),
    }
}

/// Whether all members are dead, though not buried: then none will ever follow.
///
/// The list is no snapshot: a member may bear a child behind the reader's back and die before it is read. Whoever
/// lives between two readings is no dead member of the first one, so at least one reading tells.
fn has_only_the_dead(group: u32, sight: &impl Sight) -> bool {
    let the_dead = || sight.members(group).filter(|members| !members.is_empty() && members.iter().all(Seen::is_dead));
    let Some(first) = the_dead() else {
        return false;
    };
    the_dead().is_some_and(|second| first.iter().map(Seen::identity).eq(second.iter().map(Seen::identity)))
}

/// Whether the number was given to another process since. Both times may be off by a tick ([`Seen::start`]).
fn is_later(start: Option<i64>, seen: &Seen) -> bool {
    start.is_some_and(|start| seen.start.abs_diff(start) > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one can see, set apart for each test.
    #[derive(Default)]
    struct Scene {
        is_empty: bool,
        processes: Vec<Seen>,
        /// What one reading after the other finds; the last one again and again.
        readings: Vec<Option<Vec<Seen>>>,
        read: std::cell::Cell<usize>,
    }

    impl Sight for Scene {
        fn may_have_process(&self, _: u32) -> bool {
            !self.is_empty
        }

        fn may_have_group(&self, _: u32) -> bool {
            !self.is_empty
        }

        fn process(&self, id: u32) -> Option<Seen> {
            self.processes.iter().find(|seen| seen.id == id).copied()
        }

        fn members(&self, _: u32) -> Option<Vec<Seen>> {
            let turn = self.read.replace(self.read.get() + 1);
            self.readings.get(turn).or(self.readings.last()).cloned().flatten()
        }
    }

    const START: i64 = 1000;

    fn seen(id: u32, state: char, threads: i64) -> Seen {
        Seen { id, group: 7, state, threads, start: START }
    }

    fn tie(kind: i64) -> TieFacts {
        TieFacts { kind, id: Some(7), start: Some(START), pid_namespace: Some("pid:[1]".to_owned()) }
    }

    #[test]
    fn a_process_is_gone_only_for_certain() {
        let started = |start| Seen { start, ..seen(7, 'S', 1) };
        for (what, process, expected) in [
            ("cannot be seen", None, false),
            ("sleeps", Some(seen(7, 'S', 1)), false),
            ("runs", Some(seen(7, 'R', 3)), false),
            ("is stopped", Some(seen(7, 'T', 1)), false),
            ("waits for a disk", Some(seen(7, 'D', 1)), false),
            ("is a zombie", Some(seen(7, 'Z', 1)), true),
            ("is dead", Some(seen(7, 'X', 0)), true),
            ("is dead, in an old kernel", Some(seen(7, 'x', 0)), true),
            ("lost its main thread only", Some(seen(7, 'Z', 2)), false),
            ("started later", Some(started(START + 2)), true),
            ("started earlier", Some(started(START - 2)), true),
            ("is read a tick later", Some(started(START + 1)), false),
            ("is read a tick earlier", Some(started(START - 1)), false),
        ] {
            let scene = Scene { processes: process.into_iter().collect(), ..Scene::default() };
            assert_eq!(is_gone(&tie(TieFacts::PROCESS), &scene), expected, "{what}");
        }
        assert!(is_gone(&tie(TieFacts::PROCESS), &Scene { is_empty: true, ..Scene::default() }));
    }

    #[test]
    fn without_a_start_time_the_number_alone_tells() {
        let unknown = TieFacts { start: None, ..tie(TieFacts::PROCESS) };
        let scene = |state| Scene { processes: vec![seen(7, state, 1)], ..Scene::default() };
        assert!(!is_gone(&unknown, &scene('S')));
        assert!(is_gone(&unknown, &scene('Z')));
    }

    #[test]
    fn a_malformed_tie_is_alive() {
        let nobody = Scene { is_empty: true, ..Scene::default() };
        for malformed in [
            TieFacts { id: None, ..tie(TieFacts::PROCESS) },
            TieFacts { id: Some(-1), ..tie(TieFacts::GROUP) },
            tie(TieFacts::NOTHING),
            tie(3),
        ] {
            assert!(!is_gone(&malformed, &nobody), "{malformed:?}");
        }
    }

    #[test]
    fn a_group_lives_as_long_as_one_of_its_members() {
        let (dead, other_dead, live) = (seen(7, 'Z', 1), seen(8, 'Z', 1), seen(9, 'S', 1));
        let half_dead = seen(8, 'Z', 2);
        for (what, readings, expected) in [
            ("hidden members", vec![None], false),
            ("no members in sight", vec![Some(vec![])], false),
            ("the dead only", vec![Some(vec![dead, other_dead])], true),
            ("one alive", vec![Some(vec![dead, live])], false),
            ("a dead main thread", vec![Some(vec![dead, half_dead])], false),
            ("hidden the second time", vec![Some(vec![dead]), None], false),
            ("a child born meanwhile", vec![Some(vec![dead]), Some(vec![dead, live])], false),
            ("a child that was born and died meanwhile", vec![Some(vec![dead]), Some(vec![dead, other_dead])], false),
            ("a number given anew", vec![Some(vec![dead]), Some(vec![Seen { start: 1, ..dead }])], false),
        ] {
            for processes in [vec![], vec![dead], vec![Seen { group: 3, ..seen(7, 'S', 1) }]] {
                let scene = Scene { processes, readings: readings.clone(), ..Scene::default() };
                assert_eq!(is_gone(&tie(TieFacts::GROUP), &scene), expected, "{what}");
            }
        }
        assert!(is_gone(&tie(TieFacts::GROUP), &Scene { is_empty: true, ..Scene::default() }));
    }

    #[test]
    fn a_leader_tells_of_its_group_without_a_search() {
        let searches = |leader| {
            let scene = Scene { processes: vec![leader], readings: vec![None], ..Scene::default() };
            (is_gone(&tie(TieFacts::GROUP), &scene), scene.read.get())
        };
        assert_eq!(searches(seen(7, 'S', 1)), (false, 0));
        assert_eq!(searches(seen(7, 'Z', 2)), (false, 0));
        assert_eq!(searches(Seen { start: START + 500, ..seen(7, 'S', 1) }), (true, 0));
        assert_eq!(searches(seen(7, 'Z', 1)), (false, 1));
    }

    #[test]
    fn only_ties_of_this_boot_and_pid_namespace_can_be_judged() {
        let host = Host::present().unwrap();
        let (boot, pid_namespace) = (host.boot.clone(), host.pid_namespace.clone());
        // Above the highest number that Linux gives.
        let tie = TieFacts { id: Some(1 << 23), pid_namespace, ..tie(TieFacts::PROCESS) };
        let gone = |boot: &str, tie: &TieFacts| {
            Look::new(&host).is_gone(&Row { boot: boot.to_owned(), tie: tie.clone(), ..Row::default() })
        };
        assert!(gone(&boot, &tie));
        assert!(!gone("another boot", &tie));
        assert!(!gone(&boot, &TieFacts { pid_namespace: Some("pid:[1]".to_owned()), ..tie.clone() }));
        assert!(!gone(&boot, &TieFacts { pid_namespace: None, ..tie.clone() }));
        assert!(!gone(&boot, &TieFacts { kind: TieFacts::NOTHING, ..tie }));
    }
}
