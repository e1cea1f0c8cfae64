//! Many at once.

use std::process::{Child, Stdio};

use super::*;

const ROUNDS: usize = 500;

#[test]
fn racing_processes_have_one_winner_per_round() {
    let (_directory, path) = scratch();
    let mut racers: Vec<_> = (0..20).map(|_| start_racer(&path)).collect();
    let mut outputs: Vec<_> = racers.iter_mut().map(|racer| BufReader::new(racer.stdout.take().unwrap())).collect();
    for output in &mut outputs {
        let ready = output.lines().map_while(|line| line.ok()).any(|line| line.ends_with("ready"));
        assert!(ready, "a racer ended before the race");
    }
    fs::write(path.with_extension("go"), "").unwrap();
    let mut wins = [0; ROUNDS];
    for (racer, mut output) in racers.into_iter().zip(outputs) {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        let ended = racer.wait_with_output().unwrap();
        assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
        let mut answers = 0;
        for line in text.lines().filter_map(|line| line.strip_prefix("round ")) {
            let (round, answer) = line.split_once(' ').unwrap();
            answers += 1;
            wins[round.parse::<usize>().unwrap()] += usize::from(answer == "won");
        }
        assert_eq!(answers, ROUNDS);
    }
    assert_eq!(wins, [1; ROUNDS]);
}

/// One of the processes of the race below: takes every round's key once and keeps it.
#[tokio::test]
#[ignore = "started by racing_processes_have_one_winner_per_round"]
async fn racer() {
    let Some(path) = env::var_os("LEASEHOLD_RACE_FILE") else {
        return;
    };
    let store = opened(Path::new(&path)).await;
    println!("ready");
    let limit = Clock::system().now() + Duration::from_secs(120);
    while !Path::new(&path).with_extension("go").exists() {
        assert!(Clock::system().now() < limit, "there is no race");
        std::thread::sleep(Duration::from_micros(100));
    }
    for round in 0..ROUNDS {
        let (key, owner) = (key(&round.to_string()), owner());
        let claim = Claim::new(&key, &owner, DAY);
        let won = loop {
            match store.acquire(&claim).await {
                Ok(attempt) => break matches!(attempt, Attempt::Acquired(_)),
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        };
        println!("round {round} {}", if won { "won" } else { "lost" });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn holders_never_overlap_and_tokens_grow() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let (_directory, path) = scratch();
    let (held, highest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let hammer = |store: SqliteStore, held: Arc<AtomicBool>, highest: Arc<AtomicU64>| async move {
        let key = key("k");
        let mut grants = 0;
        while grants < 200 {
            let owner = owner();
            let grant = match store.acquire(&Claim::new(&key, &owner, TTL)).await {
                Ok(Attempt::Acquired(grant)) => grant,
                Ok(Attempt::Contended(_)) => continue,
                // A disk that is slow for seconds.
                Err(error) if error.kind() == ErrorKind::Unavailable => continue,
                Err(error) => panic!("{error:?}"),
            };
            assert!(!held.swap(true, Ordering::SeqCst), "two holders");
            assert!(highest.swap(token(&grant), Ordering::SeqCst) < token(&grant));
            grants += 1;
            tokio::task::yield_now().await;
            assert!(held.swap(false, Ordering::SeqCst));
            loop {
                match store.release(&key, &owner).await {
                    Ok(given) => break assert!(given),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
                }
            }
        }
    };
    let mut hammers = Vec::new();
    for _ in 0..4 {
        let store = SqliteStore::open(&path).await.unwrap();
        hammers.push(tokio::spawn(hammer(store, Arc::clone(&held), Arc::clone(&highest))));
    }
    for hammer in hammers {
        hammer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_can_create_the_file_at_once() {
    for _ in 0..20 {
        let (_directory, path) = scratch();
        let open = |path: PathBuf| async move { opened(&path).await };
        let opening: Vec<_> = (0..16).map(|_| tokio::spawn(open(path.clone()))).collect();
        let mut tokens = Vec::new();
        for (n, store) in opening.into_iter().enumerate() {
            let store = store.await.unwrap();
            tokens.push(token(&granted(&store, &Claim::new(&key(&n.to_string()), &owner(), TTL)).await));
        }
        assert!(tokens.is_sorted_by(|a, b| a < b), "one file, one counter: {tokens:?}");
    }
}

/// A disk may be slow for seconds.
async fn opened(path: &Path) -> SqliteStore {
    loop {
        match SqliteStore::open(path).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            opened => return opened.unwrap(),
        }
    }
}

fn start_racer(path: &Path) -> Child {
    let racer = "store::sqlite::tests::races::racer";
    Command::new(env::current_exe().unwrap())
        .args(["--exact", racer, "--ignored", "--nocapture"])
        .env("LEASEHOLD_RACE_FILE", path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn writers_that_are_killed_leave_a_file_that_works() {
    let (_directory, path) = scratch();
    fs::write(path.with_extension("go"), "").unwrap();
    for turn in 1..=5 {
        let mut racers: Vec<_> = (0..3).map(|_| start_racer(&path)).collect();
        let mut output = BufReader::new(racers[0].stdout.take().unwrap()).lines();
        // All are somewhere in the middle of their work, at another place each turn.
        let mark = format!("round {} ", turn * 60);
        assert!(output.any(|line| line.unwrap().starts_with(&mark)));
        for racer in &mut racers {
            racer.kill().unwrap();
        }
        for racer in &mut racers {
            racer.wait().unwrap();
        }
        let db = Connection::open(&path).unwrap();
        let check: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        let highest: i64 = db.query_row("SELECT max(token) FROM leases", [], |row| row.get(0)).unwrap();
        let store = SqliteStore::open(&path).await.unwrap();
        let grant = granted(&store, &Claim::new(&key(&format!("after {turn}")), &owner(), TTL)).await;
        assert!(token(&grant) > highest.unsigned_abs());
    }
}
