//! A way to servers that is not the store's.

use std::thread;
use std::time::Duration;

use leasehold::testkit::Server;
use redis::{Client, FromRedisValue, RedisResult};

/// Asks a server over a connection of its own.
///
/// # Errors
///
/// The server's refusal, or that it cannot be reached.
pub fn ask<T: FromRedisValue>(server: &Server, words: &[&str]) -> RedisResult<T> {
    let client = Client::open(format!("redis://{}", server.address()))?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(10))?;
    connection.set_read_timeout(Some(Duration::from_secs(60)))?;
    let (name, arguments) = words.split_first().expect("something is asked");
    redis::cmd(name).arg(arguments).query(&mut connection)
}

/// Asks again and again until there is something: five times and more as long as anything takes.
///
/// # Panics
///
/// There never is.
pub fn patiently<T>(what: &str, attempt: impl Fn() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(value) = attempt() {
            return value;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("never came: {what}")
}
