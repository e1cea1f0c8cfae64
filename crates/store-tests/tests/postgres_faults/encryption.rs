//! What each `sslmode` takes for enough.

use std::process::Command;

use leasehold::store::Store;
use leasehold::{ErrorKind, config};
use store_tests::{Postgres, Table, run};
use tempfile::TempDir;

use crate::setting::until;

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
#[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
fn each_mode_is_as_strict_as_it_says() {
    run(async {
        let certificates = Certificates::new();
        // The server's user may read neither a key of root's nor one that others may read.
        let script = "cp server.key.in server.key; chmod 600 server.key; chown postgres server.key 2>/dev/null || true";
        let settings = ["-c", "ssl=on", "-c", "ssl_cert_file={dir}/server.pem", "-c", "ssl_key_file={dir}/server.key"];
        let server = Postgres::prepared(
            script,
            &settings,
            &[("server.pem", certificates.read("server.pem")), ("server.key.in", certificates.read("server.key"))],
        );
        let table = Table::of(server);
        let port = table.server().port();
        let open = async |host: &str, options: &str| {
            let url = format!("postgres://postgres@{host}:{port}/{}?{options}", table.database());
            config::open(&url).await.map(drop)
        };
        let (ca, other) = (certificates.path("ca.pem"), certificates.path("other.pem"));
        open("localhost", "sslmode=disable").await.unwrap();
        open("localhost", "").await.unwrap();
        open("localhost", "sslmode=require").await.unwrap();
        open("127.0.0.1", "sslmode=require").await.unwrap();
        open("localhost", &format!("ca_file={ca}")).await.unwrap();
        open("localhost", &format!("sslmode=verify-full&ca_file={ca}")).await.unwrap();
        for (host, options) in [
            ("localhost", "sslmode=verify-full".to_owned()),
            ("localhost", format!("ca_file={other}")),
            ("127.0.0.1", format!("ca_file={ca}")),
        ] {
            let error = open(host, &options).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{options}: {error}");
            assert!(error.to_string().contains("certificate"), "{options}: {error}");
        }
        for options in [format!("sslmode=require&ca_file={ca}"), "ca_file=/etc/hostname".to_owned()] {
            assert_eq!(open("localhost", &options).await.unwrap_err().kind(), ErrorKind::InvalidConfig, "{options}");
        }
        // What is asked for is what is there.
        let client = table.client().await;
        let store = table.store().await;
        store.probe().await.unwrap();
        let encrypted =
            "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'leasehold'";
        // Those before it may still be ending.
        until("all that is left is encrypted", async || {
            let rows = client.query(encrypted, &[]).await.unwrap();
            !rows.is_empty() && rows.iter().all(|row| row.get::<_, bool>(0))
        })
        .await;
    });
}
