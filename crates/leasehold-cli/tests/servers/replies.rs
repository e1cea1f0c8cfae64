//! Answers that are lost: what was done is done, once, and is told.

use leasehold::testkit::{Accident, Proxy};
use serde_json::Value;

use crate::site::Site;

on_servers! {
    each_command_comes_to_what_it_would_have
    an_acquire_has_one_holder
}

/// A way to the store that loses the answer to the first request with these words.
fn lossy(site: &Site, words: &str) -> (Proxy, String) {
    let proxy = Proxy::start(site.server().address()).unwrap();
    proxy.once(Accident::lose_reply().containing(words));
    let url = site.url_at(proxy.address());
    (proxy, url)
}

fn each_command_comes_to_what_it_would_have(site: &Site) {
    let take = || {
        site.run(["acquire", "k", "--ttl", "1m", "--owner-file", "own"]).expect(0);
        site.read("own").trim_end().to_owned()
    };
    for arguments in [
        &["extend", "k", "--owner-file", "own"][..],
        &["release", "k", "--owner-file", "own"],
        &["resume", "k", "--from", "own", "--", "true"],
        &["force-release", "k", "--yes"],
    ] {
        let token = if site.is_free("k") { take() } else { site.read("own").trim_end().to_owned() };
        let (proxy, url) = lossy(site, &token);
        let (command, rest) = arguments.split_at(1);
        let ended = site.run([command, &["-s", &url], rest].concat());
        assert_eq!(proxy.pending(), 0, "{command:?} lost nothing");
        assert_eq!(ended.code(), 0, "{command:?}: {}", ended.stderr);
        let stands = command == ["extend"];
        assert_eq!((site.is_free("k"), site.path("own").exists()), (!stands, stands || command == ["force-release"]));
    }
}

fn an_acquire_has_one_holder(site: &Site) {
    for options in [&["--ttl", "1m"][..], &["--ttl", "1m", "--keeper=1"]] {
        let (proxy, url) = lossy(site, "leasehold:k");
        let arguments = [&["acquire", "k", "-s", &url, "--owner-file", "own", "--format", "json"], options].concat();
        let taken = site.run(arguments).expect(0);
        assert_eq!(proxy.pending(), 0);
        let taken: Value = serde_json::from_str(&taken.stdout).unwrap();
        let shown: Value = serde_json::from_str(&site.run(["show", "k", "--json"]).expect(0).stdout).unwrap();
        assert_eq!(shown["holders"][0]["fencing"], taken["fencing"]);
        site.run(["release", "k", "--owner-file", "own"]).expect(0);
        assert!(site.is_free("k"));
    }
}
