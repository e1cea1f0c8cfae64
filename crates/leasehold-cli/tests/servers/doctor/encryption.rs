//! Encryption that only one side wants, authorities that nobody knows, passwords that are wrong.

use std::net::TcpStream;
use std::process::Command;

use store_tests::{Postgres, Table, redis};
use tempfile::TempDir;

use super::examine;

/// An authority, a certificate by it for the server `localhost`, and another authority.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let openssl = |words: &str| {
            let made = Command::new("openssl").args(words.split(' ')).current_dir(folder.path()).output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=authority -days 2"));
        openssl(&format!("req -x509 {key} -keyout other.key -out other.pem -subj /CN=other -days 2"));
        openssl(&format!("req {key} -keyout server.key -out request -subj /CN=server"));
        std::fs::write(folder.path().join("names"), "subjectAltName=DNS:localhost").unwrap();
        openssl(
            "x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
        );
        Self(folder)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn redis_with_and_without() {
    let certificates = Certificates::new();
    let (ca, other) = (certificates.path("ca.pem"), certificates.path("other.pem"));
    let options = [
        ["--port", "0"],
        ["--tls-port", "{port}"],
        ["--tls-cert-file", &certificates.path("server.pem")],
        ["--tls-key-file", &certificates.path("server.key")],
        ["--tls-auth-clients", "no"],
    ];
    let accepts = |address| TcpStream::connect(address).is_ok();
    let encrypted = redis().args(options.concat()).args(["--tls-ca-cert-file", &ca]).ready(accepts).start().unwrap();
    let port = encrypted.port();
    examine(&format!("rediss://localhost:{port}?ca_file={ca}"), &[], 1).finds("ok", "a free key is granted", "");
    for url in [format!("rediss://localhost:{port}?ca_file={other}"), format!("rediss://127.0.0.1:{port}?ca_file={ca}")]
    {
        examine(&url, &[], 78).finds("fail", "certificate", "correct the URL or the setting");
    }
    examine(&format!("redis://localhost:{port}"), &[], 69).finds("fail", "does it expect rediss:?", "the URL names it");
    let plain = redis().start().unwrap();
    examine(&format!("rediss://localhost:{}?connect_timeout=1s&ca_file={ca}", plain.port()), &[], 69).finds(
        "fail",
        "",
        "else write redis:",
    );
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn postgres_with_and_without() {
    let certificates = Certificates::new();
    // The server's user may read neither a key of root's nor one that others may read.
    let script = "cp server.key.in server.key; chmod 600 server.key; chown postgres server.key 2>/dev/null || true";
    let settings = [
        ["-c", "ssl=on"],
        ["-c", "ssl_cert_file={dir}/server.pem"],
        ["-c", "ssl_key_file={dir}/server.key"],
        ["-c", "hba_file={dir}/hba"],
    ];
    let hba = "host all postgres 127.0.0.1/32 trust\nhostssl all locks 127.0.0.1/32 scram-sha-256\n";
    let files = [
        ("server.pem", certificates.read("server.pem")),
        ("server.key.in", certificates.read("server.key")),
        ("hba", hba.to_owned()),
    ];
    let table = Table::of(Postgres::prepared(script, &settings.concat(), &files));
    store_tests::run(async {
        let create = "CREATE ROLE locks LOGIN PASSWORD 'hunter2'; GRANT CREATE ON SCHEMA public TO locks";
        table.client().await.batch_execute(create).await.unwrap();
    });
    let (port, database) = (table.server().port(), table.database());
    let url = |user: &str, options: &str| format!("postgres://{user}@localhost:{port}/{database}?{options}");
    let (ca, other) = (certificates.path("ca.pem"), certificates.path("other.pem"));
    examine(&url("locks:hunter2", &format!("ca_file={ca}")), &[], 1).finds("ok", "a free key is granted", "");
    examine(&url("locks:hunter22", ""), &[], 77)
        .finds("fail", "check the user name and the password", "password")
        .says_nothing_of("hunter2");
    examine(&url("locks:hunter2", &format!("ca_file={other}")), &[], 78).finds(
        "fail",
        "certificate",
        "correct the URL",
    );
    examine(&url("locks:hunter2", "sslmode=disable"), &[], 77)
        .finds("fail", "no encryption", "the server")
        .says_nothing_of("hunter2");
    let plain = Table::new();
    examine(&format!("{}?sslmode=require", plain.url()), &[], 78).finds(
        "fail",
        "offers no encryption",
        "correct the URL",
    );
}
