//! How a server is named, who asks, and what is told of an address that is wrong.

use leasehold::config::Config;
use leasehold::{Error, ErrorKind, LockManager};
use store_tests::{Authority, redis};

use crate::refusals::{SECRET, is_told};
use crate::setting::{Direct, nobody, soon};

async fn connect(url: &str) -> Result<LockManager, Error> {
    soon("an answer", LockManager::connect(url)).await
}

async fn works(locks: &LockManager) {
    let guard = locks.lock("k").try_acquire().await.unwrap().unwrap();
    assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_password_comes_from_the_url_a_file_or_the_configuration() {
    let server = redis().args(["--requirepass", SECRET]).file("password", "hunter2\nanother line\n").start().unwrap();
    let (address, file) = (server.address(), server.dir().join("password"));
    works(&connect(&format!("redis://:{SECRET}@{address}")).await.unwrap()).await;
    works(&connect(&format!("redis://default:{SECRET}@{address}/2")).await.unwrap()).await;
    let by_file = format!("redis://{address}?password_file={}", file.display());
    works(&connect(&by_file).await.unwrap()).await;
    let plain = format!("redis://{address}");
    works(&Config::from_url(&plain).password(SECRET).connect().await.unwrap()).await;
    works(&Config::from_url(&plain).password_file(&file).connect().await.unwrap()).await;
    // The URL counts first.
    works(&Config::from_url(&format!("redis://:{SECRET}@{address}")).password("wrong").connect().await.unwrap()).await;
    let config = Config::from_url(&format!("redis://:{SECRET}@{address}")).password(SECRET);
    assert!(!format!("{config:?} {:?}", config.resolve().unwrap()).contains(SECRET));

    let error = connect(&format!("redis://{address}?password_file=/etc/nonexistent")).await.unwrap_err();
    is_told(&error, ErrorKind::InvalidConfig, &["/nonexistent"]);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_number_chooses_the_database() {
    let server = redis().start().unwrap();
    let (zero, three) = (format!("redis://{}", server.address()), format!("redis://{}/3", server.address()));
    let (zero, three) = (connect(&zero).await.unwrap(), connect(&three).await.unwrap());
    let _in_zero = zero.lock("k").try_acquire().await.unwrap().unwrap();
    let in_three = three.lock("k").try_acquire().await.unwrap().unwrap();
    let mut direct = Direct::to(server.address());
    direct.ask("SELECT 3");
    assert_eq!(direct.text("GET leasehold:k").unwrap(), in_three.owner_token().expose());
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn a_socket_is_named_by_its_path() {
    let server = redis().args(["--unixsocket", "{dir}/it.sock"]).file("password", "pw").start().unwrap();
    let (socket, dir) = (format!("redis+unix://{}/it.sock", server.dir().display()), server.dir().display());
    let by_path = connect(&socket).await.unwrap();
    works(&by_path).await;
    // The same database as by the port, so the same locks.
    let _held = by_path.lock("k").try_acquire().await.unwrap().unwrap();
    let by_port = connect(&format!("redis://{}", server.address())).await.unwrap();
    assert!(by_port.lock("k").try_acquire().await.unwrap().is_none());
    Direct::to(server.address()).ask("ACL SETUSER me on >pw ~* &* +@all");
    let options = format!("{socket}?db=2&user=me&password_file={dir}/password");
    works(&connect(&options).await.unwrap()).await;
    let error = connect(&format!("redis+unix://{dir}/no.sock")).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["failed to connect", "No such file"]);
}

#[tokio::test]
async fn wrong_urls_and_options() {
    for (url, words) in [
        ("redis://", "names no host"),
        ("redis://h/x", "database"),
        ("redis://:hunter2@h:port/", "malformed"),
        ("redis://a,b/0", "several hosts"),
        ("redis://h?passwordfile=/run/x", "did you mean \"password_file\"?"),
        ("redis://h?ca_file=/x", "unknown option"),
        ("redis://h?db=1", "unknown option"),
        ("redis://h?password=hunter2", "unknown option"),
        ("redis+unix://relative/path", "absolute path"),
        ("redis+unix:///x?db=one", "database"),
        ("rediss://h?ca_file=/nonexistent", "/nonexistent"),
        ("rediss://h?ca_file=/etc/hostname", "no certificates"),
        ("redisss://h", "did you mean rediss:?"),
    ] {
        let error = connect(url).await.unwrap_err();
        is_told(&error, ErrorKind::InvalidConfig, &["failed to connect", words]);
    }
}

#[tokio::test]
async fn nobody_listens() {
    let (_port, nobody) = nobody();
    for url in [format!("redis://:{SECRET}@{nobody}"), format!("rediss://:{SECRET}@{nobody}")] {
        is_told(&connect(&url).await.unwrap_err(), ErrorKind::Unavailable, &["failed to connect", "refused"]);
    }
    let error = connect(&format!("redis://:{SECRET}@no-such-host.invalid")).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["failed to connect"]);
}

#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn an_encrypted_connection_trusts_only_the_authority_it_was_told_to() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let dir = authority.path().display();
    let server = authority.redis().args(["--requirepass", SECRET]).start().unwrap();
    let port = server.port();
    let by = |host: &str, authority: &str| format!("rediss://:{SECRET}@{host}:{port}/1?ca_file={authority}");
    let (known, unknown) = (format!("{dir}/ca.pem"), stranger.path().join("ca.pem").display().to_string());
    works(&connect(&by("localhost", &known)).await.unwrap()).await;
    for url in [
        by("localhost", &unknown),
        format!("rediss://:{SECRET}@localhost:{port}"),
        // Another name than the one that the certificate is for.
        by("127.0.0.1", &known),
    ] {
        let error = connect(&url).await.unwrap_err();
        is_told(&error, ErrorKind::InvalidConfig, &["failed to connect", "certificate", "ca_file"]);
    }
    // Unencrypted, where encryption is expected, and the other way round.
    let error = connect(&format!("redis://:{SECRET}@127.0.0.1:{port}?connect_timeout=5s")).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["failed to connect"]);
    let plain = redis().start().unwrap();
    let error = connect(&format!("rediss://:{SECRET}@{}?connect_timeout=5s", plain.address())).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["failed to connect"]);
}
