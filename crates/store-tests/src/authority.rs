//! Servers that encrypt.

use std::fs;
use std::path::Path;
use std::process::Command;

use leasehold::testkit::{Server, ServerBuilder};
use tempfile::TempDir;

/// An authority, and a certificate by it for the server `localhost`.
#[derive(Debug)]
pub struct Authority(TempDir);

impl Authority {
    /// One that nobody knows. It takes `openssl`.
    ///
    /// # Panics
    ///
    /// It cannot be made.
    #[allow(clippy::new_without_default, reason = "it writes files")]
    pub fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let openssl = |words: &str| {
            let made = Command::new("openssl").args(words.split(' ')).current_dir(directory.path()).output().unwrap();
            assert!(made.status.success(), "{words}: {}", String::from_utf8_lossy(&made.stderr));
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        fs::write(directory.path().join("names"), "subjectAltName=DNS:localhost").unwrap();
        openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=authority -days 2"));
        openssl(&format!("req {key} -keyout server.key -out request -subj /CN=server"));
        openssl(
            "x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile names",
        );
        Self(directory)
    }

    /// Where its files are, `ca.pem` among them.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A Redis server that listens for encrypted connections alone.
    pub fn redis(&self) -> ServerBuilder {
        let dir = self.path().display();
        let files =
            format!("--tls-cert-file {dir}/server.pem --tls-key-file {dir}/server.key --tls-ca-cert-file {dir}/ca.pem");
        Server::builder("redis-server")
            .args(["--bind", "127.0.0.1", "--port", "0", "--tls-port", "{port}", "--dir", "{dir}", "--save", ""])
            .args(["--tls-auth-clients", "no"])
            .args(files.split(' '))
    }
}
