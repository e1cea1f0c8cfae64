//! Holder and taker do not see each other's processes as they are.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use leasehold::Clock;

use crate::actor::{Actor, Scene};

const STRANGER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
/// Another user, with a `/proc` that hides everybody else.
const BLIND_STRANGER: [&str; 6] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"",
    "sh",
];
const OTHER_NUMBERS: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
/// With a `/proc` that tells of other processes than the numbers mean here.
const OTHER_NUMBERS_FOREIGN_PROC: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];
const OTHER_TIME: [&str; 6] = ["unshare", "--time", "--boottime", "86400", "--fork", "--kill-child"];

/// A process that does nothing; killed at the end.
struct Sleeper(Child);

impl Sleeper {
    /// In a new group of its own if the group is 0.
    fn start(way: &[&str], group: i32) -> Self {
        let words = [way, &["sleep", "600"]].concat();
        Self(Command::new(words[0]).args(&words[1..]).process_group(group).spawn().unwrap())
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Whether actors may be started in these ways; prints a reason if not.
fn can_start(ways: &[&[&str]]) -> bool {
    ways.iter().filter(|way| !way.is_empty()).all(|way| {
        let why = match Command::new(way[0]).args(&way[1..]).arg("true").output() {
            Ok(output) if output.status.success() => return true,
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        println!("skipped: cannot run {way:?}: {why}");
        false
    })
}

/// Has `other` refused while the holder lives, and follow soon after its death.
fn sees_life_and_death(mut holder: Actor, mut other: Actor) {
    assert_eq!(holder.tell("take"), "taken");
    assert_eq!(other.tell("take"), "held");
    assert_eq!(other.tell("look"), "held");
    other.have_wait();
    holder.die();
    assert_eq!(other.answer(), "taken");
}

/// Has `other` follow when the ttl is over, whether the holder is alive or not.
fn waits_for_the_ttl(mut holder: Actor, mut other: Actor) {
    const TTL: Duration = Duration::from_secs(15);
    let began = Clock::system().now();
    assert_eq!(holder.tell(&format!("take {}", TTL.as_millis())), "taken");
    assert_eq!(other.tell("take"), "held");
    holder.die();
    other.have_wait();
    assert_eq!(other.answer(), "taken");
    assert!(Clock::system().now().since(began) >= TTL, "it was taken over too soon");
}

fn each_way_round(one: &[&str], two: &[&str], check: fn(Actor, Actor)) {
    if can_start(&[one, two]) {
        std::thread::scope(|scope| {
            for (holder, other) in [(one, two), (two, one)] {
                scope.spawn(move || {
                    let scene = Scene::new();
                    check(scene.actor_within(holder), scene.actor_within(other));
                });
            }
        });
    }
}

#[test]
fn who_may_not_signal_the_holder_still_sees_it() {
    each_way_round(&[], &STRANGER, sees_life_and_death);
}

#[test]
fn who_cannot_see_the_holder_still_sees_its_end() {
    each_way_round(&[], &BLIND_STRANGER, sees_life_and_death);
    each_way_round(&BLIND_STRANGER, &BLIND_STRANGER, sees_life_and_death);
}

#[test]
fn a_hidden_zombie_is_alive() {
    if !can_start(&[&BLIND_STRANGER]) {
        return;
    }
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor_within(&BLIND_STRANGER));
    let mut group = Sleeper::start(&[], 0);
    assert_eq!(holder.tell("take"), "taken");
    assert_eq!(holder.tell(&format!("tie {}", group.id())), "tied");
    group.0.kill().unwrap();
    assert_eq!(other.tell("take"), "held");
    group.0.wait().unwrap();
    assert_eq!(other.tell("take"), "taken");
    assert_eq!(other.tell("give"), "given");

    assert_eq!(holder.tell("take"), "taken");
    holder.kill();
    assert_eq!(other.tell("take"), "held");
    holder.bury();
    assert_eq!(other.tell("take"), "taken");
}

#[test]
fn a_group_with_a_hidden_member_is_alive() {
    if !can_start(&[&STRANGER, &BLIND_STRANGER]) {
        return;
    }
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor_within(&BLIND_STRANGER));
    let mut leader = Sleeper::start(&STRANGER, 0);
    let group = i32::try_from(leader.id()).unwrap();
    let mut hidden = Sleeper::start(&[], group);
    assert_eq!(holder.tell("take"), "taken");
    assert_eq!(holder.tell(&format!("tie {group}")), "tied");
    // All that the other one sees of the group from now on is a zombie.
    leader.0.kill().unwrap();
    let is_zombie = |id| fs::read_to_string(format!("/proc/{id}/stat")).unwrap().contains(") Z ");
    while !is_zombie(leader.id()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(other.tell("take"), "held");
    hidden.0.kill().unwrap();
    hidden.0.wait().unwrap();
    leader.0.wait().unwrap();
    assert_eq!(other.tell("take"), "taken");
}

#[test]
fn another_pid_namespace_waits_for_the_ttl() {
    each_way_round(&[], &OTHER_NUMBERS, waits_for_the_ttl);
    each_way_round(&[], &OTHER_NUMBERS_FOREIGN_PROC, waits_for_the_ttl);
    each_way_round(&OTHER_NUMBERS, &OTHER_NUMBERS, waits_for_the_ttl);
}

#[test]
fn a_probe_tells_where_deaths_cannot_be_seen() {
    if can_start(&[&OTHER_NUMBERS, &OTHER_NUMBERS_FOREIGN_PROC]) {
        let scene = Scene::new();
        assert_eq!(scene.actor_within(&OTHER_NUMBERS).tell("probe"), "sees");
        assert_eq!(scene.actor_within(&OTHER_NUMBERS_FOREIGN_PROC).tell("probe"), "blind");
    }
}

/// Two in one pid namespace, of whom one may lack its `/proc`.
#[test]
fn the_same_pid_namespace_is_as_good_as_the_first() {
    if !can_start(&[&OTHER_NUMBERS]) {
        return;
    }
    for (holder_has_proc, other_has_proc) in [(true, true), (false, true), (true, false)] {
        let scene = Scene::new();
        let first = scene.actor_within(&OTHER_NUMBERS);
        let inside = fs::read_to_string(format!("/proc/{0}/task/{0}/children", first.id())).unwrap();
        let bare = ["nsenter", "--target", inside.trim(), "--pid"];
        let full = ["nsenter", "--target", inside.trim(), "--pid", "--mount"];
        if !can_start(&[&bare, &full]) {
            return;
        }
        let enter = |has_proc| scene.actor_within(if has_proc { &full } else { &bare });
        let check = if other_has_proc { sees_life_and_death } else { waits_for_the_ttl };
        check(enter(holder_has_proc), enter(other_has_proc));
    }
}

#[test]
fn another_time_namespace_sees_the_same_start() {
    each_way_round(&[], &OTHER_TIME, sees_life_and_death);
}
