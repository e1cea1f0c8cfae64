//! Something else answers, or nothing that makes sense: never a lease, never a key that somebody holds, and no panic.

use std::env;
use std::fs;
use std::panic;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::store::{Claim, Store};
use leasehold::{ErrorKind, Key, LockManager, OwnerToken};
use tokio::task::JoinSet;

use crate::fake::{Fake, greeting};
use crate::refusals::{SECRET, all_of, is_told};
use crate::setting::{LONG, SHORT, manager, soon, store};

/// No answer to anything that a lock asks.
fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    let mut noise: Vec<u8> = (0..4000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    noise.extend(b"\r\n");
    vec![
        ("noise", noise),
        ("a web server", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("a huge text", b"$999999999999\r\nabc".to_vec()),
        ("a text longer than there are numbers", b"$99999999999999999999999\r\nabc".to_vec()),
        ("a text of negative length", b"$-7\r\nabc\r\n".to_vec()),
        ("a huge array", b"*999999999999\r\n:1\r\n".to_vec()),
        ("a huge map", b"%999999999999\r\n:1\r\n".to_vec()),
        ("an array in an array in an array", b"*1\r\n".repeat(100_000)),
        ("half an array", b"*3\r\n:1\r\n".to_vec()),
        ("an empty array", b"*0\r\n".to_vec()),
        ("nothing", b"_\r\n".to_vec()),
        ("no array", b"*-1\r\n".to_vec()),
        ("a word", b"+OK\r\n".to_vec()),
        ("zero", b":0\r\n".to_vec()),
        ("a negative number", b":-7\r\n".to_vec()),
        ("a large number", b":99999999999999999999\r\n".to_vec()),
        ("a truth", b"#t\r\n".to_vec()),
        ("a fraction", b",1.5\r\n".to_vec()),
        ("a grant without a token", b"*2\r\n:1\r\n:5\r\n".to_vec()),
        ("a grant with a negative token", b"*3\r\n:1\r\n:6000\r\n:-7\r\n".to_vec()),
        ("a grant with a text for a token", b"*3\r\n:1\r\n:6000\r\n$3\r\nabc\r\n".to_vec()),
        ("a grant of negative length", b"*3\r\n:1\r\n:-6000\r\n:7\r\n".to_vec()),
        ("a refusal without a length", b"*1\r\n:0\r\n".to_vec()),
        ("a refusal without a line", b"*2\r\n:0\r\n:5\r\n".to_vec()),
        ("a refusal with a text", b"*3\r\n:0\r\n$1\r\nx\r\n:0\r\n".to_vec()),
        ("a refusal of negative length", b"*3\r\n:0\r\n:-7\r\n:0\r\n".to_vec()),
        ("a refusal behind fewer than nobody", b"*3\r\n:0\r\n:5\r\n:-1\r\n".to_vec()),
        ("a refusal with another end", b"*4\r\n:0\r\n:5\r\n:0\r\n$1\r\nx\r\n".to_vec()),
        ("a refusal that goes on", b"*5\r\n:0\r\n:5\r\n:0\r\n:1\r\n:1\r\n".to_vec()),
        ("another verdict", b"*3\r\n:2\r\n:6000\r\n:7\r\n".to_vec()),
        ("an array of errors", b"*2\r\n-ERR a\r\n-ERR b\r\n".to_vec()),
        ("a push", b">2\r\n+message\r\n+x\r\n".to_vec()),
    ]
}

/// Fails the test if a panic came from elsewhere than the tests.
fn watch_for_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            let is_test = what.location().is_some_and(|place| place.file().contains("redis_faults"));
            PANICKED.fetch_or(!is_test, Ordering::AcqRel);
            before(what);
        }));
    });
}

static PANICKED: AtomicBool = AtomicBool::new(false);

/// The most memory that this process has had, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Set for a process that runs one test.
const ALONE: &str = "LEASEHOLD_TEST_GARBAGE_ALONE";

/// In a process of its own, for the memory of others is none of it.
#[test]
fn garbage_after_connecting() {
    if env::var_os(ALONE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(garbage_takes_little_memory());
    }
    let mut itself = Command::new(env::current_exe().unwrap());
    itself.args(["--exact", "garbage::garbage_after_connecting", "--nocapture"]).env(ALONE, "yes");
    let output = itself.output().unwrap();
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains("1 passed"), "{told}{errors}");
}

async fn garbage_takes_little_memory() {
    watch_for_panics();
    let before = peak();
    let mut cases = JoinSet::new();
    for (what, answer) in garbage() {
        cases.spawn(async move {
            let fake = Fake::after_connecting(answer).await;
            let locks = manager(fake.address(), SHORT).await;
            for wait in [Duration::ZERO, Duration::from_secs(1)] {
                let answer = soon(what, locks.lock("k").acquire_within(wait)).await;
                let error = answer.expect_err(what);
                assert_eq!(error.kind(), ErrorKind::Indeterminate, "{what}: {error}");
                is_told(&error, ErrorKind::Indeterminate, &["failed to acquire \"k\" on redis"]);
            }
            let error = soon(what, locks.holder("k")).await;
            // Nobody holds the key, says the empty array.
            if what != "an empty array" {
                assert_eq!(error.expect_err(what).kind(), ErrorKind::Unavailable, "{what}");
            }
        });
    }
    while let Some(case) = cases.join_next().await {
        case.unwrap();
    }
    assert!(!PANICKED.load(Ordering::Acquire), "something panicked");
    let grown = peak() - before;
    assert!(grown < 1 << 20, "{grown} KiB");
}

#[tokio::test]
async fn garbage_at_once() {
    watch_for_panics();
    let mut cases = JoinSet::new();
    for (what, answer) in garbage() {
        cases.spawn(async move {
            let fake = Fake::start(move |_| answer.clone()).await;
            let url = format!("redis://user:{SECRET}@{}?connect_timeout=2s", fake.address());
            let error = soon(what, LockManager::connect(&url)).await.expect_err(what);
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Rejected), "{what}: {error}");
            is_told(&error, error.kind(), &["failed to connect"]);
        });
    }
    while let Some(case) = cases.join_next().await {
        case.unwrap();
    }
    assert!(!PANICKED.load(Ordering::Acquire), "something panicked");
}

#[tokio::test]
async fn a_web_server_is_told_from_a_server_that_is_away() {
    let fake = Fake::start(|_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await;
    let error = RedisStore::connect(&format!("redis://{}", fake.address())).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["is something else behind this address?"]);
    drop(fake);
}

/// Words of the protocol in any order, which is mostly nonsense; the same for a seed.
fn nonsense(seed: u64) -> Vec<u8> {
    let words: [&[u8]; 20] = [
        b"*3\r\n",
        b"*2\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"%1\r\n",
        b"~2\r\n",
        b">1\r\n",
        b"|1\r\n",
        b"$3\r\nabc\r\n",
        b"$-1\r\n",
        b"$5\r\nab",
        b"_\r\n",
        b"#f\r\n",
        b",nan\r\n",
        b"(123456789012345678901234567890\r\n",
        b"=5\r\ntxt:a\r\n",
        b"+QUEUED\r\n",
        b"!3\r\nERR\r\n",
        b"\r\n",
        b"\0\xff\xfe",
    ];
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..1 + next() % 8).flat_map(|_| words[next() % words.len()].to_vec()).collect()
}

#[tokio::test]
async fn nonsense_is_never_a_lease_nor_a_holder() {
    watch_for_panics();
    // All at once on one thread would be late to connect.
    for first in (0..300).step_by(30) {
        let mut cases = JoinSet::new();
        for seed in first..first + 30 {
            cases.spawn(async move {
                let fake = Fake::after_connecting(nonsense(seed)).await;
                let locks = manager(fake.address(), SHORT).await;
                let answer = soon("an answer", locks.lock("k").try_acquire()).await;
                // An error of the server that has no meaning is told as one; everything else as unknown.
                let kind = answer.expect_err(&format!("{seed}")).kind();
                assert!(matches!(kind, ErrorKind::Indeterminate | ErrorKind::Rejected), "{seed}: {kind}");
            });
        }
        while let Some(case) = cases.join_next().await {
            case.unwrap();
        }
    }
    assert!(!PANICKED.load(Ordering::Acquire), "something panicked");
}

/// What the real servers cannot be made to say at will.
#[tokio::test]
async fn errors_are_told_as_what_they_are() {
    for (answer, kind, words) in [
        ("-NOAUTH Authentication required.", ErrorKind::Rejected, "name a user and a password"),
        ("-WRONGPASS invalid username-password pair", ErrorKind::Rejected, "check the user name"),
        ("-NOPERM no permissions to access a key", ErrorKind::Rejected, "give the user the rights"),
        ("-LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable, "try again soon"),
        ("-OOM command not allowed", ErrorKind::Unavailable, "out of memory"),
        ("-READONLY You can't write against a read only replica.", ErrorKind::Unavailable, "become a replica"),
        ("-ERR max number of clients reached", ErrorKind::Unavailable, "raise maxclients"),
        ("-MISCONF Errors writing to the AOF file", ErrorKind::Unavailable, "cannot save"),
        ("-NOREPLICAS Not enough good replicas to write.", ErrorKind::Unavailable, "too few replicas"),
        ("-BUSY Redis is busy running a script.", ErrorKind::Unavailable, "busy with a script"),
        ("-WRONGTYPE Operation against a key", ErrorKind::Rejected, "choose another key"),
        ("-MASTERDOWN Link with MASTER is down", ErrorKind::Unavailable, "try again soon"),
        ("-MOVED 866 10.0.0.7:6379", ErrorKind::Rejected, "cluster"),
        ("-ASK 866 10.0.0.7:6379", ErrorKind::Rejected, "cluster"),
        ("-ERR something new", ErrorKind::Rejected, "something new"),
        ("-ERR no such TASK in this ROOM", ErrorKind::Rejected, "see the server's log"),
        ("-upstream failure", ErrorKind::Indeterminate, "upstream failure"),
        ("-", ErrorKind::Indeterminate, "the server said"),
        // As versions up to 6 tell what a script ran into.
        (
            "-ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed",
            ErrorKind::Unavailable,
            "out of memory",
        ),
    ] {
        let fake = Fake::after_connecting(format!("{answer}\r\n")).await;
        let locks = manager(fake.address(), LONG).await;
        for wait in [Duration::ZERO, Duration::from_secs(1)] {
            let error = locks.lock("k").acquire_within(wait).await.unwrap_err();
            is_told(&error, kind, &["failed to acquire \"k\" on redis", words]);
        }
        // Nor is it word of a lease that is gone, or was given back.
        let (key, owner) = (Key::new("leasehold", "k").unwrap(), OwnerToken::mint().unwrap());
        let (store, claim) = (store(fake.address()).await, Claim::new(&key, &owner, LONG));
        let told = store.extend(&[claim]).await.unwrap().remove(0);
        is_told(&told.unwrap_err(), kind, &[words]);
        is_told(&store.release(&key, &owner).await.unwrap_err(), kind, &[words]);
        is_told(&store.transfer(&owner, &claim).await.unwrap_err(), kind, &[words]);
        is_told(&store.force_release(&key, None).await.unwrap_err(), kind, &[words]);
        // As a manager tells it.
        let lock = locks.lock("k");
        is_told(&lock.extend_by(&owner, LONG).await.unwrap_err(), kind, &["failed to extend", words]);
        is_told(&lock.release_by(&owner).await.unwrap_err(), kind, &["failed to release", words]);
    }
}

#[tokio::test]
async fn long_and_wild_errors_are_cut() {
    let fake = Fake::after_connecting(format!("-ERR \x1b[31m{}\r\n", "x".repeat(100_000))).await;
    let locks = manager(fake.address(), LONG).await;
    let error = locks.lock("k").try_acquire().await.unwrap_err();
    is_told(&error, ErrorKind::Rejected, &["xxx"]);
    assert!(!error.to_string().contains('\x1b'));
}

#[tokio::test]
async fn a_server_that_repeats_what_it_was_asked_gives_no_secret_away() {
    let repeat = |words: &[String]| {
        let list = words[1..].iter().map(|word| format!("'{word}' ")).collect::<String>();
        format!("-ERR unknown command '{}', with args beginning with: {list}\r\n", words[0]).into_bytes()
    };
    let fake = Fake::start(repeat).await;
    let error = RedisStore::connect(&format!("redis://user:{SECRET}@{}", fake.address())).await.unwrap_err();
    is_told(&error, ErrorKind::Rejected, &["failed to connect"]);

    // As what stands between us and the server might, which knows some commands.
    let fake = Fake::start(move |words| greeting(words).unwrap_or_else(|| repeat(words))).await;
    let store = RedisStore::connect(&format!("redis://{}", fake.address())).await.unwrap();
    let (key, owner) = (Key::new("", "k").unwrap(), OwnerToken::mint().unwrap());
    let claim = Claim::new(&key, &owner, LONG);
    for error in [
        store.acquire(&claim).await.unwrap_err(),
        store.extend(&[claim]).await.unwrap().remove(0).unwrap_err(),
        store.release(&key, &owner).await.unwrap_err(),
        store.transfer(&owner, &claim).await.unwrap_err(),
        store.force_release(&key, Some(&owner)).await.unwrap_err(),
    ] {
        is_told(&error, ErrorKind::Rejected, &["unknown command"]);
        assert!(!all_of(&error).contains(&owner.expose()), "{}", all_of(&error));
    }
}
