//! The binary that needs no library of the system.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold::testkit::Server;

use crate::support::Place;

/// How often the start is measured.
const STARTS: usize = 50;

fn binary() -> PathBuf {
    PathBuf::from(std::env::var_os("LEASEHOLD_TEST_STATIC").unwrap())
}

#[test]
#[ignore = "needs what packaging/static builds, in LEASEHOLD_TEST_STATIC; .ci/long has it"]
fn it_asks_for_no_loader() {
    let headers = Command::new("readelf").args(["--wide", "--program-headers", "--dynamic"]).arg(binary()).output();
    let headers = String::from_utf8(headers.unwrap().stdout).unwrap();
    assert!(headers.contains("LOAD") && !headers.contains("INTERP") && !headers.contains("(NEEDED)"), "{headers}");
}

/// A root with nothing in it but the binary, and what an image from nothing has.
fn empty_root(place: &Place) -> PathBuf {
    let root = place.path("root");
    for folder in ["etc", "data", "proc", "dev"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    // By another process: see `as_nobody`.
    let copied = Command::new("cp").arg(binary()).arg(root.join("leasehold")).status().unwrap();
    assert!(copied.success());
    // A container's engine writes this one, and mounts /proc and /dev.
    fs::write(root.join("etc/hosts"), "127.0.0.1 store.test\n").unwrap();
    root
}

fn inside(place: &Place, arguments: &[&str]) -> Command {
    let root = empty_root(place);
    let mount = "mount -t proc none \"$1/proc\" && mount --bind /dev \"$1/dev\" && shift && exec chroot \"$0\" /leasehold \"$@\"";
    let root = root.to_str().unwrap();
    place.program([&["unshare", "--mount", "--pid", "--fork", "sh", "-c", mount, root, root], arguments].concat())
}

#[test]
#[ignore = "needs what packaging/static builds, in LEASEHOLD_TEST_STATIC; .ci/long has it"]
fn it_runs_where_nothing_else_is() {
    let place = Place::new();
    place.start(inside(&place, &["version"])).finish().expect(0);
    let file = "sqlite:///data/leases.db";
    let ran = ["run", "k", "-s", file, "--", "/leasehold", "show", "k", "-s", file];
    assert!(place.start(inside(&place, &ran)).finish().expect(0).stdout.contains("\"k\" is held"));
    place.start(inside(&place, &["doctor", "-s", file])).finish().expect(0);
    // Names are found without the libraries that usually do it.
    let ready = |address| TcpStream::connect(address).is_ok();
    let options = ["--bind", "127.0.0.1", "--port", "{port}", "--dir", "{dir}", "--save", ""];
    let server = Server::builder("redis-server").args(options).ready(ready).start().unwrap();
    let url = format!("redis://store.test:{}", server.address().port());
    place.start(inside(&place, &["run", "k", "-s", &url, "--", "/leasehold", "version"])).finish().expect(0);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://store.test:{nobody}/x");
    let refused = place.start(inside(&place, &["show", "k", "-s", &url])).finish().expect(69);
    assert!(refused.stderr.contains("refused"), "{}", refused.stderr);
}

/// How long it takes from the start to the end, the median of many.
fn start_up(binary: &std::path::Path) -> Duration {
    let mut all: Vec<_> = (0..STARTS)
        .map(|_| {
            #[allow(clippy::disallowed_methods, reason = "what is measured is real")]
            let start = Instant::now();
            Command::new(binary).arg("version").output().unwrap();
            start.elapsed()
        })
        .collect();
    all.sort_unstable();
    all[STARTS / 2]
}

#[test]
#[ignore = "needs what packaging/static builds, in LEASEHOLD_TEST_STATIC; .ci/long has it"]
fn its_start_is_told() {
    let size = fs::metadata(binary()).unwrap().len() / 1024;
    println!("{size} KiB, starts and ends in {:.1?}, the median of {STARTS}", start_up(&binary()));
}
