//! Sentinels that do not agree, and what they have to let us ask.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::store::redis::RedisStore;
use leasehold::{Clock, ErrorKind, LockManager};
use store_tests::{Sentinels, ask, redis, run};

use crate::fake::{Fake, greeting};
use crate::refusals::is_told;
use crate::rights::RULES;
use crate::setting::{Direct, LONG, nobody, soon};

/// A sentinel that knows of this many failovers, the last of which made this server the primary; `None` = it knows no
/// such name.
async fn sentinel(knows: Option<(SocketAddr, u32)>) -> Fake {
    let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    Fake::start(move |words| {
        let answer = match (words[0].as_str(), words.get(1).map(String::as_str), knows) {
            ("SENTINEL", Some("GET-MASTER-ADDR-BY-NAME"), Some((address, _))) => {
                format!("*2\r\n{}{}", text("127.0.0.1"), text(&address.port().to_string()))
            }
            ("SENTINEL", Some("GET-MASTER-ADDR-BY-NAME"), None) => "*-1\r\n".to_owned(),
            ("SENTINEL", Some("MASTER"), Some((_, epoch))) => {
                let facts = ["name", "main", "config-epoch", &epoch.to_string(), "quorum", "2"].map(text).concat();
                format!("*6\r\n{facts}")
            }
            ("SENTINEL", ..) => "-ERR No such master with that name\r\n".to_owned(),
            _ => return greeting(words).unwrap_or_else(|| b"-ERR unknown\r\n".to_vec()),
        };
        answer.into_bytes()
    })
    .await
}

fn url(sentinels: &[SocketAddr]) -> String {
    let hosts: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
    format!("redis+sentinel://{}/main", hosts.join(","))
}

/// One was away and names the old primary, which is not aware of anything; the third is dead.
#[tokio::test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
async fn without_a_majority_the_latest_failover_counts() {
    let (old, new) = (redis().start().unwrap(), redis().start().unwrap());
    let was_away = sentinel(Some((old.address(), 4))).await;
    let knows = sentinel(Some((new.address(), 5))).await;
    let (_port, dead) = nobody();
    let hosts = [was_away.address(), knows.address(), dead];
    let mut counted = 0;
    for turn in 0.. {
        let mut hosts = hosts;
        hosts.rotate_left(turn % 3);
        let began = Clock::system().now();
        let store = soon("an answer", RedisStore::connect(&url(&hosts))).await.unwrap();
        // One that answers half a second after the other is not heard, by design.
        let are_both_heard = Clock::system().now().since(began) < Duration::from_millis(400);
        let locks = LockManager::builder(store).ttl(LONG).build().unwrap();
        let _guard = locks.lock(&format!("k{turn}")).try_acquire().await.unwrap().unwrap();
        if are_both_heard {
            let there = format!("EXISTS leasehold:k{turn} leasehold:k{turn}:fence{{leasehold:k{turn}}}");
            assert_eq!(Direct::to(old.address()).number(&there), 0, "granted by the old primary");
            counted += 1;
        }
        if counted == 12 {
            break;
        }
        assert!(turn < 200, "they are both heard in {counted} turns only");
    }
}

/// A sentinel that lost its configuration, say, while the others are away.
#[tokio::test]
async fn what_a_minority_does_not_know_may_be_there() {
    let knows_none = sentinel(None).await;
    let [(_port, dead), (_other_port, other)] = [nobody(), nobody()];
    let one = [knows_none.address(), dead, other];
    let error = soon("an answer", RedisStore::connect(&url(&one))).await.unwrap_err();
    is_told(&error, ErrorKind::Unavailable, &["1 of 3 sentinels", "\"main\""]);
    let most = [knows_none.address(), knows_none.address(), dead];
    let error = soon("an answer", RedisStore::connect(&url(&most))).await.unwrap_err();
    is_told(&error, ErrorKind::InvalidConfig, &["check the name", "\"main\""]);
}

/// What the documentation says that we ask of sentinels.
const ASKED: [&str; 2] = ["+sentinel|get-master-addr-by-name", "+sentinel|master"];

/// Whoever logs in to a sentinel may from now on do this, and nothing else.
fn allow(sentinels: &Sentinels, rights: &[&str]) {
    for sentinel in sentinels.sentinels() {
        let client = ::redis::Client::open(format!("redis://operator:pw@{}", sentinel.address())).unwrap();
        let rules = ["SETUSER", "default", "reset", "on", ">s3cret"].into_iter().chain(rights.iter().copied());
        let mut connection = client.get_connection().unwrap();
        ::redis::cmd("ACL").arg(rules.collect::<Vec<_>>()).exec(&mut connection).unwrap();
    }
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn what_is_documented_is_enough_of_sentinels() {
    run(async {
        for right in ASKED {
            assert!(RULES.contains(&format!("`{right}`")), "not in the documentation: {right}");
        }
        let sentinels = Sentinels::start();
        for sentinel in sentinels.sentinels() {
            ask::<()>(sentinel, &["ACL", "SETUSER", "operator", "on", ">pw", "~*", "&*", "+@all"]).unwrap();
        }
        let file = sentinels.servers()[0].dir().join("password");
        std::fs::write(&file, "s3cret\n").unwrap();
        let url = format!("{}?sentinel_password_file={}", sentinels.url(), file.display());
        // As long as they agree, nobody has to know which failover was the latest.
        for rights in [&ASKED[..], &ASKED[..1]] {
            allow(&sentinels, rights);
            let locks = LockManager::connect(&url).await.unwrap();
            locks.lock("k").try_acquire().await.unwrap().unwrap().release().await.unwrap();
        }
        for rights in [&ASKED[1..], &[]] {
            allow(&sentinels, rights);
            let error = LockManager::connect(&url).await.unwrap_err();
            is_told(&error, ErrorKind::Rejected, &["the sentinels refuse us"]);
        }
    });
}
