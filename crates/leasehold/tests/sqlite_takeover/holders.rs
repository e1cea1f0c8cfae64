//! The holder is one process.

use std::fs;
use std::process::Command;
use std::time::Duration;

use leasehold::Clock;

use crate::actor::{Actor, Scene};

/// Has one wait until the other is gone: `end` ends it.
fn passes_on(mut holder: Actor, mut waiter: Actor, end: impl FnOnce(&mut Actor)) {
    assert_eq!(holder.tell("take"), "taken");
    assert_eq!(waiter.tell("take"), "held");
    assert_eq!(waiter.tell("look"), "held");
    waiter.have_wait();
    end(&mut holder);
    assert_eq!(waiter.answer(), "taken");
}

#[test]
fn a_killed_holder_is_followed_at_once() {
    let scene = Scene::new();
    passes_on(scene.actor(), scene.actor(), Actor::bury);
}

#[test]
fn a_zombie_holds_nothing() {
    let scene = Scene::new();
    passes_on(scene.actor(), scene.actor(), Actor::kill);
}

#[test]
fn what_a_killed_holder_leaves_reads_as_free() {
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor());
    assert_eq!(holder.tell("take"), "taken");
    assert_eq!(other.tell("look"), "held");
    holder.bury();
    assert_eq!(other.tell("look"), "free");
    assert_eq!(other.tell("take"), "taken");
}

#[test]
fn a_number_that_was_given_to_a_later_process_holds_nothing() {
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor());
    assert_eq!(holder.tell("take"), "taken");
    scene.alter("tie_start = tie_start - 1");
    assert_eq!(other.tell("take"), "held");
    scene.alter("tie_start = tie_start - 100");
    assert_eq!(other.tell("take"), "taken");
}

#[test]
fn a_process_whose_start_cannot_be_told_is_alive() {
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor());
    assert_eq!(holder.tell("take"), "taken");
    scene.alter("tie_start = NULL");
    assert_eq!(other.tell("take"), "held");
    holder.bury();
    assert_eq!(other.tell("take"), "taken");
}

#[test]
fn a_process_that_lost_its_main_thread_is_alive() {
    let scene = Scene::new();
    let (source, program) = (scene.path("headless.c"), scene.path("headless"));
    let text = "#include <pthread.h>\n#include <unistd.h>\n\
        static void *stay(void *none) { for (;;) pause(); return none; }\n\
        int main(void) { pthread_t other; pthread_create(&other, 0, stay, 0); pthread_exit(0); }\n";
    fs::write(&source, text).unwrap();
    // The compiler that builds SQLite.
    let compiled = Command::new("cc").arg("-pthread").arg("-o").args([&program, &source]).status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: there is no C compiler");
        return;
    }
    let (mut holder, mut other) = (scene.actor(), scene.actor());
    assert_eq!(holder.tell("take"), "taken");
    holder.become_program(&program);
    while !fs::read_to_string(format!("/proc/{}/stat", holder.id())).unwrap().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(other.tell("take"), "held");
    other.have_wait();
    holder.kill();
    assert_eq!(other.answer(), "taken");
}

#[test]
fn what_was_kept_or_handed_over_stands_until_its_ttl() {
    const TTL: Duration = Duration::from_secs(15);
    for order in ["keep", "hand-over"] {
        let scene = Scene::new();
        let (mut holder, mut other) = (scene.actor(), scene.actor());
        assert_eq!(holder.tell(&format!("take {}", TTL.as_millis())), "taken");
        let left = Clock::system().now();
        holder.tell(order);
        holder.bury();
        other.have_wait();
        assert_eq!(other.answer(), "taken");
        assert!(Clock::system().now().since(left) >= TTL, "{order}: it was taken over too soon");
    }
}

#[test]
fn who_takes_on_a_lease_is_who_has_to_be_alive() {
    let scene = Scene::new();
    let (mut first, mut second, mut other) = (scene.actor(), scene.actor(), scene.actor());
    assert_eq!(first.tell("take"), "taken");
    let token = first.tell("hand-over");
    first.bury();
    assert_eq!(other.tell("take"), "held");
    assert_eq!(second.tell(&format!("resume {token}")), "taken");
    assert_eq!(other.tell("take"), "held");
    other.have_wait();
    second.bury();
    assert_eq!(other.answer(), "taken");
}

#[test]
fn a_stopped_holder_is_alive() {
    let scene = Scene::new();
    let (mut holder, mut other) = (scene.actor(), scene.actor());
    assert_eq!(holder.tell("take"), "taken");
    let id = rustix::process::Pid::from_raw(i32::try_from(holder.id()).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    assert_eq!(other.tell("take"), "held");
    holder.bury();
    assert_eq!(other.tell("take"), "taken");
}
