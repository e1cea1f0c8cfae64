//! What the examples say is true.

#![allow(clippy::unwrap_used, reason = "an error fails the test, also in its helpers")]

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
#[allow(dead_code, reason = "its `main` is for those who run it as an example")]
#[path = "../examples/hand_over.rs"]
mod hand_over;
#[cfg(feature = "sqlite")]
#[path = "../examples/leader.rs"]
mod leader;
#[path = "../examples/scoped_work.rs"]
mod scoped_work;
#[allow(dead_code, reason = "its `main` is for those who run it as an example")]
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

/// The file of the leases, for the process that the test below starts.
#[cfg(feature = "sqlite")]
const FILE: &str = "LEASEHOLD_EXAMPLE_FILE";

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn hand_over_passes_a_lease_to_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let mut successor = std::process::Command::new(std::env::current_exe().unwrap());
    successor.args(["--exact", "what_the_other_process_does"]).env(FILE, &file);
    hand_over::give(file, successor).await.unwrap();
}

/// Does nothing unless the test above starts it.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn what_the_other_process_does() {
    if let Some(file) = std::env::var_os(FILE) {
        hand_over::take_on(file.as_ref()).await.unwrap();
    }
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
    let metrics = ask("GET /metrics").await;
    for line in ["leasehold_acquired_total 2\n", "leasehold_contentions_total 1\n", "leasehold_lost_total 0\n"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let closed = locks.lock("import").try_acquire().await.map(drop).unwrap_err();
    assert_eq!(closed.kind(), leasehold::ErrorKind::Closed);
}
