//! What a power loss leaves: all that was synced, and of what came after any part.
//!
//! A loss is played by cutting the log, in the same file, and opening it as another boot does.

use std::collections::BTreeMap;
use std::ops::Range;

use fastrand::Rng;
use rusqlite::config::DbConfig;

use super::*;

const KEYS: u64 = 6;
const STEPS: usize = 25;
const LOSSES: u64 = 40;

/// Where the header of a log has what each of its frames repeats.
const SALTS: Range<usize> = 16..24;

/// A file that lives through several boots.
struct Machine {
    path: PathBuf,
    _directory: TempDir,
    boot: u64,
    rng: Rng,
    held: BTreeMap<u64, Held>,
    /// The highest token ever given.
    highest: u64,
}

/// A lease as its holder knows it.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    owner: OwnerToken,
    token: u64,
    /// Confirmed as tied to nothing, so it outlives the boot.
    untied: bool,
}

/// What was confirmed when the log was this long.
struct Mark {
    end: usize,
    held: BTreeMap<u64, Held>,
    synced: bool,
}

/// The bytes of the file and of its log.
#[derive(Clone)]
struct Disk {
    file: Vec<u8>,
    log: Vec<u8>,
}

impl Machine {
    fn new(seed: u64) -> Self {
        // In memory where that can be: what a sync is worth is not the question here, and there are many.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = directory.path().join("leases.db");
        let rng = Rng::with_seed(seed);
        Self { path, _directory: directory, boot: 0, rng, held: BTreeMap::new(), highest: 0 }
    }

    /// Starts the machine again, and opens the file.
    async fn boot(&mut self) -> SqliteStore {
        self.boot += 1;
        self.held.retain(|_, held| held.untied);
        // Of several lengths, so that the file outgrows its room at several points.
        let boot = format!("boot {:0>1$}", self.boot, self.rng.usize(..200));
        SqliteStore::open_on(&self.path, host_with(|host| host.boot = boot)).await.unwrap()
    }

    /// A token that was just given.
    fn given(&mut self, grant: &Grant) -> u64 {
        let token = token(grant);
        assert!(token > self.highest, "{token} after {}", self.highest);
        self.highest = token;
        token
    }

    /// Does something by chance with a key; whether that was promised to survive.
    async fn step(&mut self, store: &SqliteStore) -> bool {
        let number = self.rng.u64(..KEYS);
        let name = key(&number.to_string());
        let untied = self.rng.u8(..3) == 0;
        let tie = if untied { Tie::Nothing } else { Tie::Process };
        let Some(held) = self.held.remove(&number) else {
            let owner = owner();
            let grant = granted(store, &Claim::new(&name, &owner, DAY).tie(tie)).await;
            let token = self.given(&grant);
            self.held.insert(number, Held { owner, token, untied });
            return untied;
        };
        let untied = match self.rng.u8(..6) {
            0 => {
                assert!(store.release(&name, &held.owner).await.unwrap());
                return false;
            }
            1 => {
                let removed = store.force_release(&name, None).await.unwrap().unwrap();
                self.highest = removed.fence_floor.unwrap().get();
                return false;
            }
            2 | 3 => {
                let owner = owner();
                let claim = Claim::new(&name, &owner, DAY).tie(tie);
                let grant = store.transfer(&held.owner, &claim).await.unwrap().unwrap();
                let token = self.given(&grant);
                self.held.insert(number, Held { owner, token, untied });
                return untied;
            }
            // A renewal changes nothing, a lease that is kept is tied anew.
            4 => {
                extend(store, &Claim::new(&name, &held.owner, DAY)).await;
                held.untied
            }
            _ => {
                extend(store, &Claim::new(&name, &held.owner, DAY).tie(Tie::Nothing)).await;
                true
            }
        };
        self.held.insert(number, Held { untied, ..held });
        untied
    }

    /// Does many things, and notes how long the log is after each.
    ///
    /// When the file outgrows its room, the log begins anew: all before is in the file by then, and synced.
    async fn history(&mut self, store: &SqliteStore) -> Vec<Mark> {
        let mut marks = vec![self.mark(true)];
        let mut round = self.round();
        for _ in 0..STEPS {
            let before = self.held.clone();
            let synced = self.step(store).await;
            if self.round() != round {
                round = self.round();
                marks = vec![Mark { end: 0, held: before, synced: true }];
            }
            marks.push(self.mark(synced));
        }
        marks
    }

    fn mark(&self, synced: bool) -> Mark {
        Mark { end: *boundaries(&self.log()).last().unwrap(), held: self.held.clone(), synced }
    }

    fn log(&self) -> Vec<u8> {
        fs::read(place::beside(&self.path, place::LOG)).unwrap()
    }

    /// Changes whenever the log begins anew.
    fn round(&self) -> [u8; 8] {
        self.log()[SALTS].try_into().unwrap()
    }

    /// What is on disk; nobody may have the file open.
    fn disk(&self) -> Disk {
        Disk { file: fs::read(&self.path).unwrap(), log: self.log() }
    }

    /// Puts this on disk, into the same files.
    fn restore(&self, file: &[u8], log: &[u8]) {
        let log_path = place::beside(&self.path, place::LOG);
        let stamps = || [&self.path, &log_path].map(|path| place::stamp(&fs::metadata(path).unwrap()));
        let before = stamps();
        fs::write(&self.path, file).unwrap();
        fs::write(&log_path, log).unwrap();
        assert_eq!(before, stamps(), "the files were replaced");
    }

    /// Looks whether exactly this still stands, and whether what is given now is higher than all before.
    async fn survived(&self, store: &SqliteStore, held: &BTreeMap<u64, Held>) {
        let mut highest = self.highest;
        for number in 0..KEYS {
            let name = key(&number.to_string());
            let found = store.inspect(&name).await.unwrap().holders;
            let found = found.first().map(|holder| (&holder.owner, holder.fencing.unwrap().get()));
            let kept = held.get(&number).filter(|held| held.untied);
            assert_eq!(found, kept.map(|kept| (&kept.owner, kept.token)), "{name:?}");
            let owner = owner();
            let claim = Claim::new(&name, &owner, DAY);
            let grant = match kept {
                Some(kept) => store.transfer(&kept.owner, &claim).await.unwrap().unwrap(),
                None => granted(store, &claim).await,
            };
            assert!(token(&grant) > highest, "{} after {highest}", token(&grant));
            highest = token(&grant);
        }
    }
}

async fn extend(store: &SqliteStore, claim: &Claim<'_>) {
    store.extend(&[*claim]).await.unwrap().remove(0).unwrap().unwrap();
}

/// Where the frames of a log end, from the end of its header on.
fn boundaries(log: &[u8]) -> Vec<usize> {
    const HEADER: usize = 32;
    const FRAME_HEADER: usize = 24;
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    assert_eq!(number(0) & !1, 0x377f_0682, "not a log");
    let frame = FRAME_HEADER + usize::try_from(number(8)).unwrap();
    // What an earlier round of the log left behind has other salts.
    let is_frame = |at: &usize| at + frame <= log.len() && log[at + 8..at + 16] == log[SALTS];
    let frames = (HEADER..).step_by(frame).take_while(is_frame);
    [HEADER].into_iter().chain(frames.map(|at| at + frame)).collect()
}

fn is_sound(path: &Path) -> bool {
    let db = Connection::open(path).unwrap();
    // The log has to stay the same file.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    db.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)).unwrap() == "ok"
}

#[tokio::test]
async fn the_log_may_end_anywhere() {
    let mut machine = Machine::new(1);
    let mut cuts = 0;
    for _ in 0..3 {
        let store = machine.boot().await;
        let marks = machine.history(&store).await;
        store.close().await.unwrap();
        let whole = machine.disk();
        let ends = boundaries(&whole.log);
        assert!(ends.len() > marks.len(), "the history is in the log");
        // Before the first mark the loss is one in the middle of the start itself.
        let places = ends.iter().flat_map(|&end| [end - 1, end, end + 1]).chain([0, 1, 24]);
        for cut in places.filter(|&cut| cut <= whole.log.len()) {
            let held = &marks.iter().rfind(|mark| mark.end <= cut).unwrap_or(&marks[0]).held;
            let mut filled = whole.log[..cut].to_vec();
            // With anything but the byte that would have come next.
            filled.resize(whole.log.len(), whole.log.get(cut).map_or(0, |next| !next));
            for log in [&whole.log[..cut], &filled] {
                machine.restore(&whole.file, log);
                let after = SqliteStore::open_on(&machine.path, other_boot()).await.unwrap();
                machine.survived(&after, held).await;
                after.close().await.unwrap();
                assert!(is_sound(&machine.path), "cut at {cut}");
                cuts += 1;
            }
        }
        machine.restore(&whole.file, &whole.log);
    }
    println!("power: {cuts} cuts");
}

#[tokio::test]
async fn no_token_repeats_over_many_losses() {
    let given = |name| env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seed = given("LEASEHOLD_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("LEASEHOLD_TEST_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let machines = given("LEASEHOLD_TEST_SEEDS").unwrap_or(1);
    for _ in 0..machines {
        lose_power_often(Machine::new(rng.u64(..))).await;
    }
    println!("power: {machines} machines, {} losses, no token repeated", machines * LOSSES);
}

async fn lose_power_often(mut machine: Machine) {
    for _ in 0..LOSSES {
        let store = machine.boot().await;
        let marks = machine.history(&store).await;
        store.close().await.unwrap();
        let Disk { file, log } = machine.disk();
        // Whatever was confirmed as synced is there, of the rest a part.
        let synced = marks.iter().rfind(|mark| mark.synced).unwrap();
        let end = *boundaries(&log).last().unwrap();
        let cut = machine.rng.usize(synced.end..=end);
        machine.held = marks.iter().rfind(|mark| mark.end <= cut).unwrap().held.clone();
        machine.restore(&file, &log[..cut]);
    }
    let last = machine.boot().await;
    machine.survived(&last, &machine.held).await;
    last.close().await.unwrap();
    assert!(is_sound(&machine.path));
}
