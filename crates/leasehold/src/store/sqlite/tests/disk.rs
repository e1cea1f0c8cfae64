//! Disks that are full, and disks that are not here.

use super::*;
use crate::{LockManager, Renew};

/// Runs one test of this file in a mount namespace of its own, with a small disk at the given directory.
fn on_small_disk(test: &str, directory: &Path) -> Option<String> {
    let output = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", "mount -t tmpfs -o size=3m none \"$0\" && exec \"$@\""])
        .args([directory, &env::current_exe().unwrap()])
        .args(["--exact", &format!("store::sqlite::tests::disk::{test}"), "--ignored", "--nocapture"])
        .env("LEASEHOLD_SMALL_DISK", directory)
        .output();
    let output = output.inspect_err(|error| println!("skipped: no unshare: {error}")).ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !text.contains("running 1 test") {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn a_full_disk_costs_no_lease_that_is_held() {
    let directory = tempfile::tempdir().unwrap();
    if let Some(text) = on_small_disk("when_the_disk_is_full", directory.path()) {
        assert!(text.contains("done"), "{text}");
    }
}

fn fill_disk(directory: &Path) {
    use std::io::Write;
    let mut filler = fs::File::create(directory.join("filler")).unwrap();
    for size in [4096, 1] {
        while filler.write_all(&vec![1; size]).is_ok() {}
    }
}

#[tokio::test]
#[ignore = "started by a_full_disk_costs_no_lease_that_is_held"]
async fn when_the_disk_is_full() {
    let Some(directory) = env::var_os("LEASEHOLD_SMALL_DISK").map(PathBuf::from) else {
        return;
    };
    let ttl = Duration::from_secs(6);
    let path = directory.join("leases.db");
    let (store, other) = (SqliteStore::open(&path).await.unwrap(), SqliteStore::open(&path).await.unwrap());
    let locks = LockManager::builder(store.clone()).ttl(ttl).build().unwrap();
    let others = LockManager::builder(other).ttl(ttl).build().unwrap();
    let guards = [locks.lock("a").acquire().await.unwrap(), others.lock("b").acquire().await.unwrap()];
    fill_disk(&directory);

    // What is held is renewed however often, also while others want more than there is.
    let (key, owner) = (key("steady"), owner());
    let mut full = None;
    for round in 0..5_000 {
        assert!(!guards.iter().any(|guard| guard.check().is_err()), "lost in round {round}");
        if full.is_none() {
            let many = others.lock(&format!("{round}-{}", "long".repeat(50))).ttl(TTL).renew(Renew::Off);
            match many.try_acquire().await {
                Ok(guard) => _ = guard.unwrap().hand_over().await.unwrap(),
                Err(error) => full = Some((round, error)),
            }
            continue;
        }
        match store.acquire(&Claim::new(&key, &owner, ttl)).await {
            Ok(_) => _ = store.extend(&[Claim::new(&key, &owner, ttl)]).await.unwrap().remove(0).unwrap().unwrap(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
    let (round, error) = full.expect("there was room for everything");
    println!("full after {round}: {error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("leases.db cannot be written: the disk is full, make room on it"), "{error}");
    let began = Clock::system().now();
    while Clock::system().now().since(began) < ttl * 3 / 2 {
        assert!(!guards.iter().any(|guard| guard.check().is_err()));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    fs::remove_file(directory.join("filler")).unwrap();
    for number in 0..1_000 {
        drop(granted(&store, &Claim::new(&Key::new("test", &format!("more {number}")).unwrap(), &owner, TTL)).await);
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    println!("done");
}

#[tokio::test]
async fn a_new_file_on_a_full_disk_is_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    if let Some(text) = on_small_disk("when_the_disk_was_full_before", directory.path()) {
        assert!(text.contains("told: Unavailable") && text.contains("the disk is full"), "{text}");
    }
}

#[tokio::test]
#[ignore = "started by a_new_file_on_a_full_disk_is_unavailable"]
async fn when_the_disk_was_full_before() {
    let Some(directory) = env::var_os("LEASEHOLD_SMALL_DISK").map(PathBuf::from) else {
        return;
    };
    fill_disk(&directory);
    let error = SqliteStore::open(directory.join("leases.db")).await.unwrap_err();
    println!("told: {:?} {error}", error.kind());
    fs::remove_file(directory.join("filler")).unwrap();
    let store = SqliteStore::open(directory.join("leases.db")).await.unwrap();
    granted(&store, &Claim::new(&key("k"), &owner(), TTL)).await;
}

#[tokio::test]
async fn network_file_systems_are_refused_before_anything_is_made() {
    let (directory, path) = scratch();
    for (file_system, name) in [
        ((|_| Some(0x6969)) as fn(&Path) -> Option<u32>, "NFS"),
        (|_| Some(0x517b), "SMB"),
        (|_| Some(0xff53_4d42), "CIFS"),
        (|_| Some(0xfe53_4d42), "CIFS"),
        (|_| Some(0x0102_1997), "9p"),
        (|_| Some(0x00c3_6400), "Ceph"),
        // Only the directory can be asked.
        (|path| (!path.ends_with("leases.db")).then_some(0x0bd0_0bd0), "Lustre"),
        // A file that is mounted from elsewhere.
        (|path| Some(if path.ends_with("leases.db") { 0x0116_1970 } else { 0xef53 }), "GFS2"),
    ] {
        let host = host_with(|host| host.file_system = file_system);
        let error = SqliteStore::open_on(&path, host).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        let text = error.to_string();
        assert!(text.contains("leases.db") && text.contains(name) && text.contains("--store sqlite:///path"), "{text}");
        assert_eq!(files(directory.path()).len(), 0);
    }
    // overlayfs, tmpfs, ext4, and one that does not answer.
    for file_system in
        [(|_| Some(0x794c_7630)) as fn(&Path) -> Option<u32>, |_| Some(0x0102_1994), |_| Some(0xef53), |_| None]
    {
        SqliteStore::open_on(&path, host_with(|host| host.file_system = file_system)).await.unwrap();
    }
}

#[tokio::test]
async fn a_fuse_file_system_is_used_and_told_by_a_probe() {
    let (_directory, path) = scratch();
    let doubts = async |host| {
        let store = SqliteStore::open_on(&path, host).await.unwrap();
        let findings = store.probe().await.unwrap().findings;
        findings.into_iter().filter(|finding| finding.level == Level::Warn && finding.what.contains("FUSE")).count()
    };
    assert_eq!(doubts(host_with(|host| host.file_system = |_| Some(0x6573_5546))).await, 1);
    assert_eq!(doubts(Host::present().unwrap()).await, 0);
}
