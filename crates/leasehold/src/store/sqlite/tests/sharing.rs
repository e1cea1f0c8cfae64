//! Several users, and several processes that wait for one another.

use super::actors::Actor;
use super::*;
use crate::{LockManager, LostReason, Renew};

/// Two users who have nothing in common but this group.
const USERS: [u32; 2] = [61_001, 61_002];
const GROUP: u32 = 61_000;

/// A copy of this program that others may execute, because the build directory may be closed to them.
pub(super) fn program(directory: &Path) -> PathBuf {
    let program = directory.join("program");
    // By another process: a file that this one has open for writing may be inherited by what another test starts, and
    // could not be executed meanwhile.
    let copied = Command::new("cp").arg(env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn actor_of(user: u32, group: u32, program: &Path, path: &Path) -> Actor {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups").arg(program);
    Actor::start_as(command, path)
}

#[test]
fn two_users_of_a_group_exclude_each_other_whoever_made_the_file() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start processes of two other users");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    set_mode(place.path(), 0o755);
    let program = program(place.path());
    for [first, second] in [USERS, [USERS[1], USERS[0]]] {
        let directory = place.path().join(format!("shared-by-{first}"));
        fs::create_dir(&directory).unwrap();
        std::os::unix::fs::chown(&directory, Some(0), Some(GROUP)).unwrap();
        set_mode(&directory, 0o2770);
        let path = directory.join("shared.db");
        let mut maker = actor_of(first, GROUP, &program, &path);
        for name in files(&directory) {
            let found = fs::metadata(directory.join(&name)).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (first, GROUP, 0o660), "{name:?}");
        }
        let mut user = actor_of(second, GROUP, &program, &path);
        assert_eq!(maker.tell("take a"), "taken");
        assert_eq!(user.tell("take a"), "held");
        assert_eq!(user.tell("take b"), "taken");
        assert_eq!(maker.tell("take b"), "held");
        assert_eq!(maker.tell("give a"), "given");
        assert_eq!(user.tell("take a"), "taken");
        // What the first one made goes, and the other one makes it anew.
        drop(maker);
        for suffix in ["-wal", "-shm"] {
            fs::remove_file(format!("{}{suffix}", path.display())).unwrap();
        }
        assert_eq!(user.tell("take c"), "taken");
        let mut late = actor_of(first, GROUP, &program, &path);
        assert_eq!(late.tell("take c"), "held");
        assert_eq!(late.tell("take d"), "taken");
        assert_eq!(user.tell("extend c"), "extended");

        // Without a right to write, and without any.
        set_mode(&directory, 0o2775);
        for (mode, user, group) in [(0o664, 61_003, 61_003), (0o660, 61_003, 61_003), (0o640, second, GROUP)] {
            for name in files(&directory) {
                set_mode(&directory.join(name), mode);
            }
            if user == first {
                continue;
            }
            let said = actor_of_refused(user, group, &program, &path);
            assert!(said.contains("rejected") || said.contains("cannot"), "{mode:o}: {said}");
            assert!(said.contains("allow this user") && said.contains("shared.db"), "{mode:o}: {said}");
        }
    }
}

fn actor_of_refused(user: u32, group: u32, program: &Path, path: &Path) -> String {
    let output = Command::new("setpriv")
        .arg(format!("--reuid={user}"))
        .arg(format!("--regid={group}"))
        .arg("--clear-groups")
        .arg(program)
        .args(["--exact", "store::sqlite::tests::places::other_user", "--ignored", "--nocapture"])
        .env("LEASEHOLD_OTHERS_FILE", path)
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("told: Rejected"), "{text}");
    text
}

#[tokio::test]
async fn a_guard_of_a_deleted_or_replaced_file_is_lost_and_a_new_one_is_had() {
    for is_replaced in [false, true] {
        let (directory, path) = scratch();
        let locks = LockManager::new(SqliteStore::open(&path).await.unwrap());
        let lock = locks.lock("k").ttl(Duration::from_secs(30)).renew(Renew::Every(Duration::from_secs(2)));
        let guard = lock.acquire().await.unwrap();
        if is_replaced {
            let successor = directory.path().join("new.db");
            let store = SqliteStore::open(&successor).await.unwrap();
            granted(&store, &Claim::new(&key("another"), &owner(), TTL)).await;
            store.close().await.unwrap();
            for suffix in ["", "-wal", "-shm"] {
                fs::rename(format!("{}{suffix}", successor.display()), format!("{}{suffix}", path.display())).unwrap();
            }
        } else {
            fs::remove_file(&path).unwrap();
        }
        let reason = tokio::time::timeout(Duration::from_secs(60), guard.lost()).await.unwrap();
        assert!(matches!(reason, LostReason::NotHeld), "{reason:?}");
        assert!(guard.check().is_err());
        let next = locks.lock("k").try_acquire().await.unwrap().expect("nobody holds it in the new file");
        next.check().unwrap();
        next.release().await.unwrap();
    }
}

/// By word of the kernel, and without it.
#[test]
fn a_waiter_in_another_process_is_woken_with_and_without_notices() {
    for limit in ["", "echo 0 > /proc/sys/user/max_inotify_instances || exit 9;"] {
        let (_directory, path) = scratch();
        let mut holder = Actor::start(&path);
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "sh", "-c", &format!("{limit} exec \"$0\" \"$@\"")]);
        command.arg(env::current_exe().unwrap());
        let Some(mut waiter) = Actor::try_start_as(command, &path) else {
            println!("skipped: no user namespace can be made here");
            return;
        };
        let mut said = Vec::new();
        for _ in 0..20 {
            assert_eq!(holder.tell("take k"), "taken");
            waiter.order("wait k");
            assert_eq!(waiter.answer(), "waiting");
            assert_eq!(holder.tell("give k"), "given");
            assert_eq!(waiter.answer(), "woken");
            said.push(waiter.tell("notices k"));
        }
        // They are kept for a second, in which a busy machine may not come to ask.
        assert_eq!(said.iter().any(|said| said == "kept"), limit.is_empty(), "{said:?}");
    }
}
