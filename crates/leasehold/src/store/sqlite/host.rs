//! What the store knows of the machine and of this process: which boot it is, what time it is, who has to be alive.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use crate::clock::{Clock, wall_now};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Tie;

/// The machine as seen by one store. Fields are set apart only in tests.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) boot: String,
    pub(super) clock: Clock,
    pub(super) wall: fn() -> SystemTime,
    /// What this process sees of the boot-time clock minus what the machine sees.
    offset: i64,
    pid: u32,
    pid_start: Option<i64>,
    pid_namespace: Option<String>,
}

/// One look at both clocks, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// Since boot, including suspend, the same for every process of the machine.
    pub(super) up: i64,
    /// Since 1970; may step.
    pub(super) wall: i64,
}

/// A tie as a row keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TieFacts {
    pub(super) kind: i64,
    pub(super) id: Option<i64>,
    pub(super) start: Option<i64>,
    pub(super) pid_namespace: Option<String>,
}

impl TieFacts {
    pub(super) const NOTHING: i64 = 0;
    pub(super) const PROCESS: i64 = 1;
    pub(super) const GROUP: i64 = 2;
}

impl Host {
    /// This machine.
    pub(super) fn present() -> Result<Self> {
        if !cfg!(target_os = "linux") {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "needs Linux, whose boot id and boot-time clock decide when a lease ends; choose another store",
            ));
        }
        let pid = std::process::id();
        Ok(Self {
            boot: boot_id()?,
            clock: Clock::system(),
            wall: wall_now,
            offset: boottime_offset()?,
            pid,
            pid_start: start_time(pid),
            pid_namespace: link("/proc/self/ns/pid"),
        })
    }

    pub(super) fn now(&self) -> Now {
        Now {
            up: i64::try_from(self.clock.now().as_nanos()).unwrap_or(i64::MAX).saturating_sub(self.offset),
            wall: since_1970((self.wall)()),
        }
    }

    /// Reads `/proc`, so it is called before a transaction begins.
    pub(super) fn facts(&self, tie: Tie) -> TieFacts {
        let (kind, id, start) = match tie {
            Tie::Process => (TieFacts::PROCESS, self.pid, self.pid_start),
            Tie::Group(leader) => (TieFacts::GROUP, leader, start_time(leader)),
            Tie::Nothing => return TieFacts::default(),
        };
        TieFacts { kind, id: Some(id.into()), start, pid_namespace: self.pid_namespace.clone() }
    }
}

pub(super) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn since_1970(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => nanos(after),
        Err(before) => -nanos(before.duration()),
    }
}

pub(super) fn wall_time(since_1970: i64) -> SystemTime {
    let distance = Duration::from_nanos(since_1970.unsigned_abs());
    let time = if since_1970 < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// What the kernel drew at random when the machine was booted.
fn boot_id() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let unsupported = |why: &str| Error::new(ErrorKind::Unsupported, format!("cannot tell which boot this is: {why}"));
    let read = || Ok((fs::metadata(PATH)?.dev(), fs::metadata("/proc")?.dev(), fs::read_to_string(PATH)?));
    let (device, proc_device, text) =
        read().map_err(|error: io::Error| unsupported("mount /proc").with_source(error))?;
    // Some containers put a number of their own there. Whoever sees the kernel's would take the leases of the others
    // for those of another boot.
    if device != proc_device {
        return Err(unsupported(
            "another file is mounted over the kernel's boot id: mount none, or choose another store",
        ));
    }
    match text.trim() {
        id if is_uuid(id) => Ok(id.to_owned()),
        _ => Err(unsupported("the kernel's boot id is empty or malformed: choose another store")),
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        && text.bytes().any(|byte| !matches!(byte, b'0' | b'-'))
}

/// How far a time namespace shifts the boot-time clock; zero where the kernel knows none.
fn boottime_offset() -> Result<i64> {
    // The offsets are those of future children. They are ours too unless this process has asked for a new namespace
    // and has not yet executed into it; then its own offset cannot be read.
    if link("/proc/self/ns/time") != link("/proc/self/ns/time_for_children") {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "cannot tell the machine's time between unshare and exec: open the store after the exec",
        ));
    }
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    match parse_boottime_offset(&offsets) {
        Some(offset) => Ok(offset),
        None if has_no_time_namespaces() => Ok(0),
        None => Err(Error::new(
            ErrorKind::Unsupported,
            "cannot tell the machine's time, because /proc/self/timens_offsets is hidden or malformed: mount the /proc \
             of this process's own pid namespace, or choose another store",
        )),
    }
}

/// Whether the kernel knows none, as far as a `/proc` of this process's own pid namespace tells.
fn has_no_time_namespaces() -> bool {
    let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    is_own_proc() && fs::symlink_metadata("/proc/self/ns/time").is_err_and(is_missing)
}

fn parse_boottime_offset(offsets: &str) -> Option<i64> {
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        // Old kernels name the clock by its number.
        if !matches!(words.next()?, "boottime" | "7") {
            return None;
        }
        let seconds: i64 = words.next()?.parse().ok()?;
        let nanos: i64 = words.next()?.parse().ok()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
    };
    offsets.lines().find_map(parse)
}

/// When a process started, in clock ticks since boot; `None` if that cannot be read here.
fn start_time(pid: u32) -> Option<i64> {
    // A /proc of another pid namespace would tell of another process.
    if !is_own_proc() {
        return None;
    }
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_start_time(stat: &str) -> Option<i64> {
    // The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whether `/proc` tells of this process's own pid namespace.
fn is_own_proc() -> bool {
    link("/proc/self").is_some_and(|name| name == std::process::id().to_string())
}

fn link(path: &str) -> Option<String> {
    Some(fs::read_link(path).ok()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_by_name_or_number() {
        for (text, expected) in [
            ("monotonic           0         0\nboottime     86400       500\n", Some(86_400_000_000_500)),
            ("1 5 0\n7 -3 0\n", Some(-3_000_000_000)),
            ("monotonic 7 7\n", None),
            ("", None),
            ("boottime x y", None),
        ] {
            assert_eq!(parse_boottime_offset(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_boot_id_is_a_uuid_and_not_empty() {
        let own = boot_id().unwrap();
        assert!(is_uuid(&own), "{own}");
        for malformed in
            ["", "0", "another boot", "00000000-0000-0000-0000-000000000000", &format!("{own}0"), &own[1..]]
        {
            assert!(!is_uuid(malformed), "{malformed}");
        }
    }

    #[test]
    fn the_start_time_is_field_22_whatever_the_name() {
        let tail = (3..=30).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(parse_start_time(&format!("17 (a) b) (c) {tail}")), Some(22));
        assert_eq!(parse_start_time("17 (a"), None);
        assert!(start_time(std::process::id()).is_some());
    }

    #[test]
    fn ties_name_what_must_be_alive() {
        let host = Host::present().unwrap();
        assert_eq!(host.facts(Tie::Nothing), TieFacts::default());
        let process = host.facts(Tie::Process);
        assert_eq!((process.kind, process.id), (TieFacts::PROCESS, Some(std::process::id().into())));
        assert!(process.start.is_some() && process.pid_namespace.is_some());
        let group = host.facts(Tie::Group(4_000_000_000));
        assert_eq!((group.kind, group.id, group.start), (TieFacts::GROUP, Some(4_000_000_000), None));
    }

    #[test]
    fn wall_times_go_there_and_back() {
        for nanos in [0, 1, -1, 1_800_000_000_123_456_789, i64::MAX] {
            assert_eq!(since_1970(wall_time(nanos)), nanos);
        }
    }
}
