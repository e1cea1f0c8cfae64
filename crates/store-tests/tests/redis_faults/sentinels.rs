//! Sentinels that do not agree.

use std::net::SocketAddr;

use leasehold::ErrorKind;
use leasehold::store::redis::RedisStore;
use store_tests::redis;

use crate::fake::{Fake, greeting};
use crate::refusals::is_told;
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
    for turn in 0..12 {
        let mut hosts = hosts;
        hosts.rotate_left(turn % 3);
        let store = soon("an answer", RedisStore::connect(&url(&hosts))).await.unwrap();
        let locks = leasehold::LockManager::builder(store).ttl(LONG).build().unwrap();
        let _guard = locks.lock(&format!("k{turn}")).try_acquire().await.unwrap().unwrap();
        assert_eq!(Direct::to(old.address()).number("DBSIZE"), 0, "granted by the old primary");
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
