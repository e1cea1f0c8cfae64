//! A server that lies.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

type Reply = dyn Fn(&[String]) -> Vec<u8> + Send + Sync;

/// Answers as it was told to, on a free port, until dropped.
pub(crate) struct Fake {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Fake {
    /// Answers each command by itself; an empty answer is none.
    pub(crate) async fn start(reply: impl Fn(&[String]) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, reply) = (listener.local_addr().unwrap(), Arc::<Reply>::from(Box::new(reply) as Box<Reply>));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&reply)));
            }
        });
        Self { address, task }
    }

    /// Lets everybody connect, and answers to all that concerns a key with these bytes.
    pub(crate) async fn after_connecting(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |words| greeting(words).unwrap_or_else(|| answer.clone())).await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The answer of a server that is as it should be to what a client says first; `None` = this is about a key.
pub(crate) fn greeting(words: &[String]) -> Option<Vec<u8>> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    Some(match *words {
        ["HELLO", ..] => b"%1\r\n$5\r\nproto\r\n:3\r\n".to_vec(),
        ["CLIENT" | "AUTH" | "SELECT", ..] => b"+OK\r\n".to_vec(),
        ["EVAL", script, "0"] if script.contains("TIME") => b"*2\r\n$1\r\n1\r\n$1\r\n2\r\n".to_vec(),
        ["EVAL" | "EVALSHA", _, "0"] => b":1\r\n".to_vec(),
        ["ROLE"] => b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec(),
        ["COMMAND", ..] => b"*2\r\n*-1\r\n*-1\r\n".to_vec(),
        _ => return None,
    })
}

async fn serve(mut stream: TcpStream, reply: Arc<Reply>) {
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        received.extend_from_slice(&chunk[..count]);
        while let Some((words, length)) = command(&received) {
            received.drain(..length);
            if stream.write_all(&reply(&words)).await.is_err() {
                return;
            }
        }
    }
}

/// The first whole command of what came, and how long it is.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let mut line = |mark: u8| {
        let end = bytes[at..].windows(2).position(|pair| pair == b"\r\n")? + at;
        assert_eq!(bytes[at], mark, "no command: {:?}", String::from_utf8_lossy(bytes));
        let number = std::str::from_utf8(&bytes[at + 1..end]).unwrap().parse::<usize>().unwrap();
        at = end + 2;
        if mark == b'*' {
            return Some((number, String::new()));
        }
        let word = bytes.get(at..at + number)?;
        let end = at + number + 2;
        at = (end <= bytes.len()).then_some(end)?;
        Some((number, String::from_utf8_lossy(word).into_owned()))
    };
    let (count, _) = line(b'*')?;
    let words = (0..count).map(|_| line(b'$').map(|(_, word)| word)).collect::<Option<Vec<_>>>()?;
    Some((words, at))
}
