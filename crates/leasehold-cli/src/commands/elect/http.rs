//! The answers to load balancers and supervisors: `/leader` and `/healthz`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::board::Board;
use crate::exit::{self, Failure};
use crate::output;

/// How many may ask at a time; more wait.
const WIDTH: usize = 64;

/// How long whoever asks may take to do so, and to hear the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest request that is read.
const LONGEST: usize = 8 * 1024;

/// Answers in the background from now on.
pub(super) async fn serve(address: SocketAddr, board: Board) -> Result<(), Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::new(exit::IO, format!("cannot listen on {address}: {error}: name another with --http"))
    })?;
    if let Ok(address) = listener.local_addr() {
        output::tell(&format!("answers on http://{address}/leader and http://{address}/healthz"));
    }
    tokio::spawn(async move {
        let turns = Arc::new(Semaphore::new(WIDTH));
        loop {
            let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors: some will be given back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let board = board.clone();
            tokio::spawn(async move {
                // Whoever is too slow, or has gone, gets no answer.
                timeout(PATIENCE, converse(stream, &board)).await.ok();
                drop(turn);
            });
        }
    });
    Ok(())
}

async fn converse(mut stream: TcpStream, board: &Board) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LONGEST {
        if stream.read_buf(&mut request).await? == 0 {
            break;
        }
    }
    // The lease is asked last, when all that is left to do is to write.
    let answer = answer(&request, board);
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

fn answer(request: &[u8], board: &Board) -> String {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/leader") => match board.leadership() {
            Some(left) => ("200 OK", format!("leads \"{}\" for at least {} ms\n", board.name(), left.as_millis())),
            None => ("503 Service Unavailable", format!("on standby for \"{}\"\n", board.name())),
        },
        ("GET" | "HEAD", "/healthz") if board.is_healthy() => ("200 OK", "ok\n".to_owned()),
        ("GET" | "HEAD", "/healthz") => ("503 Service Unavailable", "stuck\n".to_owned()),
        ("GET" | "HEAD", _) => ("404 Not Found", "there are /leader and /healthz\n".to_owned()),
        _ => ("405 Method Not Allowed", "ask with GET\n".to_owned()),
    };
    let length = body.len();
    let body = if method == "HEAD" { "" } else { &body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
    )
}
