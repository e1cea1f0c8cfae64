//! What the examples say is true, and what is said of them. Those that end by themselves are run here, the others in a
//! process of their own.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[path = "../examples/bounded_wait.rs"]
mod bounded_wait;
#[cfg(all(feature = "schedule", feature = "sqlite"))]
#[path = "../examples/cron.rs"]
mod cron;
#[path = "../examples/fenced_write.rs"]
mod fenced_write;
#[cfg(feature = "sqlite")]
#[path = "../examples/hand_over.rs"]
mod hand_over;
#[cfg(feature = "sqlite")]
#[path = "../examples/leader.rs"]
mod leader;
#[path = "../examples/scoped_work.rs"]
mod scoped_work;
#[path = "../examples/service.rs"]
mod service;

#[test]
fn scoped_work_runs() {
    scoped_work::main().unwrap();
}

#[test]
fn bounded_wait_runs() {
    bounded_wait::main().unwrap();
}

#[test]
#[cfg(all(feature = "schedule", feature = "sqlite"))]
fn cron_on_three_replicas_runs_each_tick_once() {
    cron::main().unwrap();
}

#[test]
#[cfg(feature = "sqlite")]
fn a_leadership_is_handed_over_on_shutdown() {
    leader::main().unwrap();
}

#[test]
fn a_late_write_is_refused_by_the_database() {
    fenced_write::main().unwrap();
}

/// Five times and more of what anything here needs on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// In a process with this, a test runs its example and nothing else.
const RUNS_IT: &str = "LEASEHOLD_TEST_RUNS_EXAMPLE";

/// This program again, for one test of it.
fn in_a_process_of_its_own(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(RUNS_IT, "yes");
    command
}

/// Starts the other process itself.
#[test]
#[cfg(feature = "sqlite")]
fn hand_over_passes_a_lease_to_another_process() {
    if env::var_os(RUNS_IT).is_some() {
        return hand_over::main().unwrap();
    }
    let mut command = in_a_process_of_its_own("hand_over_passes_a_lease_to_another_process");
    let ended = command.output().unwrap();
    assert!(ended.status.success() && String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
}

/// Killed if the test fails.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn the_service_serves_until_it_is_interrupted() {
    if env::var_os(RUNS_IT).is_some() {
        return service::main().unwrap();
    }
    let mut command = in_a_process_of_its_own("the_service_serves_until_it_is_interrupted");
    command.env("SERVICE_LISTEN", "127.0.0.1:0").stdout(Stdio::piped());
    let mut service = Service(command.spawn().unwrap());
    let mut lines = BufReader::new(service.0.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| Some(line.unwrap().split_once("listening on ")?.1.to_owned())).unwrap();
    for (what, answers) in [("GET /health", "memory answers in"), ("POST /import", "imported under")] {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let request = format!("{what} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(answers), "{answer}");
    }
    kill_process(Pid::from_child(&service.0), Signal::INT).unwrap();
    let until = leasehold::Clock::system().now() + SOON;
    let status = loop {
        if let Some(status) = service.0.try_wait().unwrap() {
            break status;
        }
        assert!(leasehold::Clock::system().now() < until, "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn every_example_is_named_and_run_and_its_command_is_right() {
    let text = |path: &str| fs::read_to_string(path).unwrap();
    let tests: String = [".", "../store-tests"].map(|of| all_of(&Path::new(of).join("tests"))).concat();
    let (manifest, front) = (text("Cargo.toml"), text("src/lib.rs"));
    let examples = fs::read_dir("examples").unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for file in examples {
        count += 1;
        let name = file.file_stem().unwrap().to_str().unwrap();
        assert!(front.contains(&format!("`{name}`")), "{name} is not on the front page");
        assert!(tests.contains(&format!("{name}::main()")), "{name} is not run");
        let needs = manifest.split("[[example]]").find(|it| it.contains(&format!("name = \"{name}\"")));
        let needs = needs.and_then(|it| it.split_once("required-features = [")?.1.split_once(']'));
        // The default is there anyway.
        let needs =
            needs.map_or("", |(features, _)| features).split('"').skip(1).step_by(2).filter(|it| *it != "sqlite");
        let source = fs::read_to_string(&file).unwrap();
        let Some(command) = source.lines().find(|line| line.contains("cargo run")) else {
            assert_eq!(needs.count(), 0, "{name} does not say how it is run");
            continue;
        };
        let parts = ["cargo run -p leasehold ".to_owned(), format!("--example {name}")];
        let parts = parts.into_iter().chain(needs.map(|feature| format!("--features {feature}")));
        parts.for_each(|part| assert!(command.contains(&part), "{part} in {command}"));
    }
    assert!(count > 10, "the examples are found");
}

/// The text of every file there.
fn all_of(directory: &Path) -> String {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|file| fs::read_to_string(file).unwrap()).collect()
}

#[tokio::test]
async fn the_service_runs_one_import_at_a_time_and_tells_its_health_and_metrics() {
    let counts = service::Counts::default();
    let locks = service::settings().open().await.unwrap().observer(counts.clone()).build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(service::serve(listener, locks.clone(), counts, async move { drop(stopped.await) }));
    let ask = |what: &'static str| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{what} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let health = ask("GET /health").await;
    assert!(health.starts_with("HTTP/1.1 200 ") && health.contains("memory answers in"), "{health}");
    let answer = ask("POST /import").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("imported under"), "{answer}");
    let guard = locks.lock("import").acquire().await.unwrap();
    let answer = ask("POST /import").await;
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    guard.release().await.unwrap();
    let lines = ["leasehold_acquired_total 2\n", "leasehold_contentions_total 1\n", "leasehold_lost_total 0\n"];
    let mut metrics = String::new();
    for _ in 0..600 {
        metrics = ask("GET /metrics").await;
        if lines.iter().all(|line| metrics.contains(line)) {
            break;
        }
        // Another thread may be telling still.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(lines.iter().all(|line| metrics.contains(line)), "{metrics}");
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let closed = locks.lock("import").try_acquire().await.map(drop).unwrap_err();
    assert_eq!(closed.kind(), leasehold::ErrorKind::Closed);
}
