//! The holder is a process group.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::actor::{Actor, Scene};

/// A shell that leads a group of its own; killed with all of it at the end.
struct Group(Child);

impl Group {
    fn start(script: &str) -> Self {
        let shell = Command::new("sh").args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        Self(shell)
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn kill(&self) {
        kill_process_group(self.id(), Signal::KILL).unwrap();
    }

    /// What the shell printed, which has to end its output for that.
    fn printed(&mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text.trim().to_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        kill_process_group(self.id(), Signal::KILL).ok();
        self.0.wait().ok();
    }
}

/// A lease that is tied to the group, its owner, and somebody who wants it.
fn tied(group: &Group) -> (Scene, Actor, Actor) {
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor());
    assert_eq!(holder.tell("take"), "taken");
    assert_eq!(holder.tell(&format!("tie {}", group.id())), "tied");
    assert_eq!(other.tell("take"), "held");
    assert_eq!(other.tell("look"), "held");
    (scene, holder, other)
}

#[test]
fn a_group_outlives_the_process_that_tied_it() {
    let mut group = Group::start("exec sleep 600");
    let (_scene, mut holder, mut other) = tied(&group);
    holder.bury();
    assert_eq!(other.tell("take"), "held");
    other.have_wait();
    group.kill();
    group.0.wait().unwrap();
    assert_eq!(other.answer(), "taken");
}

#[test]
fn a_lease_may_be_for_a_group_from_the_grant_on() {
    let mut group = Group::start("exec sleep 600");
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor());
    assert_eq!(holder.tell(&format!("take-for {}", group.id())), "taken");
    holder.bury();
    assert_eq!(other.tell("take"), "held");
    other.have_wait();
    group.kill();
    group.0.wait().unwrap();
    assert_eq!(other.answer(), "taken");
}

#[test]
fn a_lease_for_a_group_that_is_gone_is_free() {
    let mut group = Group::start("exec sleep 600");
    group.kill();
    group.0.wait().unwrap();
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor());
    assert_eq!(holder.tell(&format!("take-for {}", group.id())), "taken");
    assert_eq!(other.tell("take"), "taken");
}

#[test]
fn a_group_of_zombies_is_gone() {
    let group = Group::start("exec sleep 600");
    let (_scene, _holder, mut other) = tied(&group);
    other.have_wait();
    group.kill();
    assert_eq!(other.answer(), "taken");
}

#[test]
fn a_group_lives_on_without_its_leader() {
    for is_buried in [false, true] {
        let mut group = Group::start("sleep 600 >/dev/null & echo $!");
        let last: i32 = group.printed().parse().unwrap();
        if is_buried {
            group.0.wait().unwrap();
        } else {
            rustix::process::waitid(
                rustix::process::WaitId::Pid(group.id()),
                rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
            )
            .unwrap();
        }
        let (_scene, _holder, mut other) = tied(&group);
        other.have_wait();
        kill_process(Pid::from_raw(last).unwrap(), Signal::KILL).unwrap();
        assert_eq!(other.answer(), "taken");
    }
}

#[test]
fn a_child_that_left_its_group_does_not_count() {
    let mut group = Group::start("setsid sleep 600 >/dev/null & echo $!");
    let away: i32 = group.printed().parse().unwrap();
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor());
    assert_eq!(holder.tell("take"), "taken");
    assert_eq!(holder.tell(&format!("tie {}", group.id())), "tied");
    other.have_wait();
    assert_eq!(other.answer(), "taken");
    kill_process(Pid::from_raw(away).unwrap(), Signal::KILL).unwrap();
}
