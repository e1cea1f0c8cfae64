//! Which boot it is, and what time.

use super::*;

#[tokio::test]
async fn a_new_boot_raises_the_epoch_before_the_first_grant() {
    let (_directory, path) = scratch();
    let (key, a) = (key("k"), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    store.release(&key, &a).await.unwrap();
    store.close().await.unwrap();
    let store = SqliteStore::open_on(&path, other_boot()).await.unwrap();
    assert_eq!(token(&granted(&store, &Claim::new(&key, &a, TTL)).await), 2 << 32);
    let again = SqliteStore::open_on(&path, other_boot()).await.unwrap();
    assert!(again.release(&key, &a).await.unwrap());
    assert_eq!(token(&granted(&again, &Claim::new(&key, &a, TTL)).await), (2 << 32) + 1);
}

#[tokio::test]
async fn after_a_reboot_a_tied_lease_is_free_and_an_untied_one_stands_until_its_wall_clock_end() {
    let (_directory, path) = scratch();
    let (tied, untied, a, b, c) = (key("tied"), key("untied"), owner(), owner(), owner());
    let before = SqliteStore::open_on(&path, other_boot()).await.unwrap();
    let first = granted(&before, &Claim::new(&tied, &a, TTL).tie(Tie::Process)).await;
    granted(&before, &Claim::new(&untied, &a, TTL)).await;
    let after = SqliteStore::open(&path).await.unwrap();
    assert!(after.extend(&[Claim::new(&tied, &a, TTL)]).await.unwrap().remove(0).unwrap().is_none());
    assert!(token(&granted(&after, &Claim::new(&tied, &b, TTL)).await) > token(&first));
    refused(&after, &Claim::new(&untied, &b, TTL)).await;

    let late = host_with(|host| host.wall = || wall_now_plus(DAY));
    let late = SqliteStore::open_on(&path, late).await.unwrap();
    assert!(late.inspect(&untied).await.unwrap().holders.is_empty(), "its wall-clock end has passed");

    after.transfer(&a, &Claim::new(&untied, &c, TTL)).await.unwrap().unwrap();
    assert_eq!(late.inspect(&untied).await.unwrap().holders.len(), 1, "it was rewritten to this boot");
    assert!(after.release(&untied, &c).await.unwrap());
}

#[tokio::test]
async fn a_wall_clock_that_is_wrong_after_a_reboot_makes_no_lease_longer() {
    let (_directory, path) = scratch();
    let (key, a, b) = (key("k"), owner(), owner());
    let before = SqliteStore::open_on(&path, other_boot()).await.unwrap();
    granted(&before, &Claim::new(&key, &a, TTL)).await;
    let host = host_with(|host| host.wall = || SystemTime::UNIX_EPOCH + Duration::from_secs(100));
    let without_clock = SqliteStore::open_on(&path, host).await.unwrap();
    assert!(refused(&without_clock, &Claim::new(&key, &b, TTL)).await.retry_after.unwrap() <= TTL);
    let extended = without_clock.extend(&[Claim::new(&key, &a, TTL)]).await.unwrap().remove(0).unwrap().unwrap();
    assert!(extended.validity <= TTL, "{extended:?}");
    let mended = SqliteStore::open(&path).await.unwrap();
    assert!(refused(&mended, &Claim::new(&key, &b, TTL)).await.retry_after.unwrap() <= TTL);
}

#[tokio::test]
async fn the_wall_clock_decides_nothing_within_a_boot() {
    let (_directory, path) = scratch();
    let (key, a, b) = (key("k"), owner(), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&key, &a, TTL)).await;
    for wall in [|| wall_now_plus(DAY * 3), || SystemTime::UNIX_EPOCH] {
        let host = host_with(|host| host.wall = wall);
        let other = SqliteStore::open_on(&path, host).await.unwrap();
        let contention = refused(&other, &Claim::new(&key, &b, TTL)).await;
        assert!(contention.retry_after.unwrap() <= TTL);
    }
    assert!(store.release(&key, &a).await.unwrap());
}

#[tokio::test]
async fn opening_sweeps_what_has_been_over_for_a_day_and_nothing_else() {
    let (_directory, path) = scratch();
    let (short, long, a) = (key("short"), key("long"), owner());
    let store = SqliteStore::open(&path).await.unwrap();
    granted(&store, &Claim::new(&short, &a, TTL)).await;
    granted(&store, &Claim::new(&long, &a, DAY)).await;
    let rows = || Connection::open(&path).unwrap().query_row("SELECT count(*) FROM leases", [], |row| row.get(0));
    for (later, left) in [(DAY, 2), (DAY + TTL * 2, 1), (DAY * 3, 0)] {
        let host = host_with(|host| host.clock = ahead(later));
        SqliteStore::open_on(&path, host).await.unwrap();
        assert_eq!(rows(), Ok::<i64, _>(left), "after {later:?}");
    }
}

/// The part of the test below that has to run in another time namespace.
#[tokio::test]
#[ignore = "started by a_time_namespace_changes_nothing"]
async fn elsewhen() {
    let Some(path) = env::var_os("LEASEHOLD_TIME_FILE") else {
        return;
    };
    let store = SqliteStore::open(path).await.unwrap();
    let remaining = store.inspect(&key("k")).await.unwrap().holders[0].remaining.unwrap();
    assert!(remaining <= TTL, "{remaining:?}");
    granted(&store, &Claim::new(&key("theirs"), &owner(), TTL)).await;
    println!("looked");
}

#[tokio::test]
async fn a_time_namespace_changes_nothing() {
    let (_directory, path) = scratch();
    let store = SqliteStore::open(&path).await.unwrap();
    let (ours, owner) = (key("k"), owner());
    for offset in ["86400", "-10"] {
        granted(&store, &Claim::new(&ours, &owner, TTL)).await;
        let output = Command::new("unshare")
            .args(["--time", "--boottime", offset, "--fork"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "store::sqlite::tests::boots::elsewhen", "--ignored", "--nocapture"])
            .env("LEASEHOLD_TIME_FILE", &path)
            .output();
        let Ok(output) = output else {
            println!("skipped: there is no unshare");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        if !text.contains("running 1 test") {
            println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        assert!(output.status.success() && text.contains("looked"), "{text}");
        let theirs = store.inspect(&key("theirs")).await.unwrap();
        assert!(theirs.holders[0].remaining.unwrap() <= TTL);
        store.force_release(&key("theirs"), None).await.unwrap().unwrap();
    }
}

/// The part of the test below that has to run where something is mounted over a part of `/proc`.
#[tokio::test]
#[ignore = "started by a_masked_proc_is_refused"]
async fn behind_a_mask() {
    let Some(path) = env::var_os("LEASEHOLD_MASKED_FILE") else {
        return;
    };
    match SqliteStore::open(path).await {
        Ok(_) => println!("opened"),
        Err(error) => println!("told: {:?} {error}", error.kind()),
    }
}

#[tokio::test]
async fn a_masked_proc_is_refused() {
    let (directory, path) = scratch();
    let boot = "/proc/sys/kernel/random/boot_id";
    for (masked, content, says) in [
        (boot, "11111111-2222-3333-4444-555555555555\n", "mounted over the kernel's boot id"),
        (boot, "\n", "mounted over the kernel's boot id"),
        ("/proc/$$/timens_offsets", "", "timens_offsets is hidden or malformed"),
    ] {
        let mask = directory.path().join("mask");
        fs::write(&mask, content).unwrap();
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", &format!("mount --bind \"$0\" {masked} && exec \"$@\"")])
            .args([&mask, &env::current_exe().unwrap()])
            .args(["--exact", "store::sqlite::tests::boots::behind_a_mask", "--ignored", "--nocapture"])
            .env("LEASEHOLD_MASKED_FILE", &path)
            .output();
        let Ok(output) = output else {
            println!("skipped: there is no unshare");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        if !text.contains("running 1 test") {
            println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        assert!(text.contains("told: Unsupported") && text.contains(says), "{masked}: {text}");
    }
}
