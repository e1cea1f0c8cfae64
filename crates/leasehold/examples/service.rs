//! A web service on several hosts: a request starts work that must run once at a time, and a load balancer asks for its
//! health.
//!
//! `SERVICE_STORE=redis://host cargo run --example service --features redis`; without it the leases are in memory, which
//! is right for one host.

use std::future::Future;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use leasehold::config::Config;
use leasehold::{Close, LeaseHandle, LockManager};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = LockManager::from_config(&settings()).await?;
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    serve(listener, locks, async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}

/// What the environment says, and below it what suits a service: handlers that block cost no lease, a store that is out
/// costs nobody more than a moment.
pub(crate) fn settings() -> Config {
    let defaults = Config::from_url("memory:").namespace("service").own_runtime(true);
    Config::from_env("SERVICE").or(defaults.breaker(Duration::from_secs(10)).retry(Duration::from_secs(1)))
}

/// Serves until it is told to stop; then work is stopped and every lease given back.
pub(crate) async fn serve(
    listener: TcpListener,
    locks: LockManager,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let service = routes(locks.clone());
    axum::serve(listener, service).with_graceful_shutdown(stop).await?;
    locks.close(Close::Release).await.map_err(io::Error::other)
}

fn routes(locks: LockManager) -> Router {
    Router::new()
        .route("/import", post(import))
        .route("/health", get(health))
        // Metrics belong here: what an `Observer` of the manager has counted.
        .with_state(locks)
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
