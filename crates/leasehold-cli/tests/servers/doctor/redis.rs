//! Redis: eviction, persistence, replicas, rights, passwords, silence.

use leasehold::testkit::Server;
use store_tests::{ask, patiently, redis};

use super::examine;
use crate::support::address_of_nobody;

fn url(server: &Server) -> String {
    format!("redis://{}", server.address())
}

/// The address of nobody.
fn nowhere() -> String {
    format!("redis://{}", address_of_nobody())
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_server_that_forgets_leases_is_found() {
    let server = redis().args(["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).start().unwrap();
    examine(&url(&server), &[], 1)
        .finds("warn", "throws leases away (maxmemory-policy allkeys-lru)", "maxmemory-policy to noeviction")
        .finds("warn", "a restart forgets leases", "appendonly to yes")
        .finds("ok", "no replica follows this server", "redis+sentinel:")
        .finds("ok", "a held key is refused to others", "");
    let server = redis().args(["--appendonly", "yes", "--maxmemory", "100mb"]).start().unwrap();
    examine(&url(&server), &[], 1).says_nothing_of("throws leases away").says_nothing_of("a restart forgets");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn replicas_are_found_and_a_replica_is_refused() {
    let primary = redis().start().unwrap();
    let replica = redis().args(["--replicaof", "127.0.0.1", &primary.port().to_string()]).start().unwrap();
    patiently("the replica follows", || {
        let state: String = ask(&primary, &["INFO", "replication"]).unwrap();
        state.contains("state=online").then_some(())
    });
    examine(&url(&primary), &[], 1)
        .finds("warn", "1 replicas follow this server", "let the resource check fencing tokens")
        .says_nothing_of("no replica");
    examine(&url(&replica), &[], 77).finds("fail", "replica", "the server that the message names");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn missing_rights_are_found() {
    let server = redis().start().unwrap();
    let all = ["~*", "&*", "+@all"];
    let examine = |user: &str, without: &str, code| {
        let rights = [&["ACL", "SETUSER", user, "on", ">pw"], &all[..], &[without]].concat();
        ask::<()>(&server, &rights).unwrap();
        examine(&format!("redis://{user}:pw@{}", server.address()), &[], code)
    };
    examine("scripts", "-eval", 77).finds("fail", "eval", "rights");
    examine("ends", "-pexpire", 77).finds("fail", "ACL LOG", "rights");
    examine("tracks", "-client|tracking", 1).finds("warn", "have to ask again and again", "+client|tracking");
    examine("knows", "-info", 1).finds("warn", "may not read what the server is like", "+info");
    examine("keys", "resetkeys", 77).finds("fail", "", "rights");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn whoever_does_not_get_in_is_told_why() {
    let server = redis().args(["--requirepass", "hunter2"]).start().unwrap();
    let (address, nowhere) = (server.address(), nowhere());
    examine(&format!("redis://:hunter22@{address}"), &[], 77)
        .finds("fail", "check the user name and the password", "password")
        .says_nothing_of("hunter2");
    examine(&url(&server), &[], 77).finds("fail", "name a user and a password", "password");
    examine(&nowhere, &[], 69).finds("fail", "refused", "see that the store runs and can be reached");
    server.stop().unwrap();
    examine(&format!("redis://:hunter2@{address}?connect_timeout=1s"), &[], 69)
        .finds("fail", "1s", "see that the store runs")
        .says_nothing_of("hunter2");
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
fn a_quorum_s_dead_server_is_found() {
    let servers: Vec<_> = (0..3).map(|_| redis().start().unwrap()).collect();
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let url = format!("redlock://{}", hosts.join(","));
    examine(&url, &[], 69)
        .finds("warn", "a restart forgets leases", "appendonly")
        // As long as they are young they have no vote.
        .finds("fail", "may have forgotten leases", "")
        // Each of several stands alone on purpose.
        .says_nothing_of("no replica");
    servers[1].kill().unwrap();
    examine(&url, &[], 69).finds("fail", "does not answer", "start it again, or replace it");
    servers[2].kill().unwrap();
    examine(&url, &[], 69).finds("fail", "", "see that the store runs");
}
