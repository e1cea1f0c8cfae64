//! What a server of the Redis family was asked.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Looks on while a server is asked.
#[derive(Debug)]
pub struct Monitor {
    lines: BufReader<TcpStream>,
    marker: TcpStream,
    marks: u32,
}

impl Monitor {
    /// Looks on from now on.
    ///
    /// # Panics
    ///
    /// The server does not let us.
    pub fn start(address: SocketAddr) -> Self {
        let connect = || {
            let stream = TcpStream::connect(address).expect("the server listens");
            stream.set_read_timeout(Some(Duration::from_secs(30))).expect("the limit is one");
            stream
        };
        let mut monitor = Self { lines: BufReader::new(connect()), marker: connect(), marks: 0 };
        monitor.lines.get_mut().write_all(b"MONITOR\r\n").expect("the server listens");
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    /// The requests of clients since the last call or the start, each as `"name" "argument"...`. What scripts did is
    /// left out.
    ///
    /// # Panics
    ///
    /// The server is gone.
    pub fn requests(&mut self) -> Vec<String> {
        self.marks += 1;
        let mark = format!("mark {}", self.marks);
        self.marker.write_all(format!("ECHO \"{mark}\"\r\n").as_bytes()).expect("the server listens");
        let mut requests = Vec::new();
        loop {
            let line = self.line();
            // +1700000000.123456 [0 127.0.0.1:12345] "name" "argument"; scripts stand as [0 lua].
            let (when, request) = line.split_once("] ").expect("a line has this form");
            if request == format!("\"ECHO\" \"{mark}\"") {
                return requests;
            }
            if !when.ends_with(" lua") {
                requests.push(request.to_owned());
            }
        }
    }

    /// Waits for a request by a command that begins so and that says this word. Those before it, and some after it, are
    /// told no more.
    ///
    /// # Panics
    ///
    /// The server is gone, or nobody asks within half a minute.
    pub async fn until(&mut self, command: &str, word: &str) {
        let begins = format!("\"{command}");
        for _ in 0..6000 {
            if self.requests().iter().any(|request| request.starts_with(&begins) && request.contains(word)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("nobody asks {command} with {word}");
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.lines.read_until(b'\n', &mut line).expect("the server tells");
        assert!(line.ends_with(b"\r\n"), "the server is gone");
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }
}
