//! A web service on several hosts: a request starts work that must run once at a time, a load balancer asks for its
//! health, and somebody collects its metrics.
//!
//! `SERVICE_STORE=redis://host cargo run -p leasehold --features redis --example service`; without it the leases are in
//! memory, which is right for one host. `SERVICE_LISTEN` says where to listen.

#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::env;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use leasehold::config::Config;
use leasehold::observe::{Event, Observer};
use leasehold::{Close, LeaseHandle, LockManager};
use tokio::net::TcpListener;

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let counts = Counts::default();
    let locks = settings().open().await?.observer(counts.clone()).build()?;
    let address = env::var("SERVICE_LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    serve(listener, locks, counts, async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}

/// What the environment says, and below it what suits a service: handlers that block cost no lease, a store that is out
/// costs nobody more than a moment.
pub(crate) fn settings() -> Config {
    let defaults = Config::from_url("memory:").namespace("service").own_runtime(true);
    Config::from_env("SERVICE").or(defaults.breaker(Duration::from_secs(10)).retry(Duration::from_secs(1)))
}

/// Serves until it is told to stop; then requests that are under way come to their end, and every lease is given back.
/// One that hangs would hold that up without end: give such requests a limit of their own.
pub(crate) async fn serve(
    listener: TcpListener,
    locks: LockManager,
    counts: Counts,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, routes(locks.clone(), counts)).with_graceful_shutdown(stop).await?;
    locks.close(Close::Release).await.map_err(io::Error::other)
}

fn routes(locks: LockManager, counts: Counts) -> Router {
    Router::new()
        .route("/import", post(import))
        .route("/health", get(health))
        .with_state(locks)
        .route("/metrics", get(async move || counts.to_string()))
}

async fn import(State(locks): State<LockManager>) -> (StatusCode, String) {
    match locks.try_with_lock("import", async |lease| run_import(lease).await).await {
        Ok(Some(ran)) => (StatusCode::OK, ran.value),
        Ok(None) => (StatusCode::CONFLICT, "somebody else is at it\n".to_owned()),
        // The store is out, or the lease was lost and the work stopped. No message holds a secret.
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn run_import(lease: LeaseHandle) -> String {
    tokio::time::sleep(Duration::from_millis(200)).await;
    match lease.fencing_token() {
        Some(token) => format!("imported under {token}\n"),
        None => "imported\n".to_owned(),
    }
}

/// Asks where the leases are; not whether one can be had, which is nobody's fault.
async fn health(State(locks): State<LockManager>) -> (StatusCode, String) {
    match locks.ping().await {
        Ok(round_trip) => (StatusCode::OK, format!("{} answers in {round_trip:.1?}\n", locks.store_name())),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// What happened so far. The features `metrics` and `otel` have observers that measure all there is, for the exporter of
/// the program; this one needs nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(Arc<[AtomicU64; 3]>);

impl Observer for Counts {
    fn observe(&self, event: &Event) {
        let count = match event {
            Event::Acquired(_) => 0,
            Event::Waiting(_) | Event::Contended(_) => 1,
            Event::Lost(_) => 2,
            _ => return,
        };
        self.0[count].fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["acquired", "contentions", "lost"];
        names.iter().zip(self.0.iter()).try_for_each(|(name, count)| {
            writeln!(f, "# TYPE leasehold_{name}_total counter")?;
            writeln!(f, "leasehold_{name}_total {}", count.load(Ordering::Relaxed))
        })
    }
}
