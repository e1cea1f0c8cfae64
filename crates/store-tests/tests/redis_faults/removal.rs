//! Redis 8.4 deletes on a condition by a command of its own, which no server here knows: as its manual tells it.

use std::sync::{Arc, Mutex};

use leasehold::store::Store;
use leasehold::{ErrorKind, Key, OwnerToken};

use crate::fake::{Fake, greeting};
use crate::refusals::is_told;
use crate::setting::{soon, store};

/// A server that knows DELEX and answers so to it, and so to scripts; and what it was asked about keys.
async fn knowing(delex: &'static str, script: &'static str) -> (Fake, Arc<Mutex<Vec<Vec<String>>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    let fake = Fake::start(move |words| {
        if words[0] == "COMMAND" {
            return b"*2\r\n*-1\r\n*2\r\n$5\r\ndelex\r\n:-2\r\n".to_vec();
        }
        greeting(words).unwrap_or_else(|| {
            heard.lock().unwrap().push(words.to_vec());
            if words[0] == "DELEX" { delex.into() } else { script.into() }
        })
    })
    .await;
    (fake, asked)
}

#[tokio::test]
async fn a_release_is_one_conditional_delete() {
    let (key, owner) = (Key::new("leasehold", "k").unwrap(), OwnerToken::mint().unwrap());
    for (answer, released) in [(":1\r\n", true), (":0\r\n", false)] {
        let (fake, asked) = knowing(answer, "-ERR no script\r\n").await;
        let store = store(fake.address()).await;
        assert_eq!(soon("an answer", store.release(&key, &owner)).await.unwrap(), released);
        let token = String::from_utf8(owner.as_bytes().to_vec()).unwrap();
        assert_eq!(*asked.lock().unwrap(), [["DELEX", "leasehold:k", "IFEQ", &*token]]);
    }
}

#[tokio::test]
async fn who_may_not_use_it_runs_a_script() {
    let (key, owner) = (Key::new("leasehold", "k").unwrap(), OwnerToken::mint().unwrap());
    let refused = "-NOPERM User u has no permissions to run the 'delex' command\r\n";
    let (fake, asked) = knowing(refused, ":1\r\n").await;
    let store = store(fake.address()).await;
    assert!(soon("an answer", store.release(&key, &owner)).await.unwrap());
    let commands: Vec<_> = asked.lock().unwrap().iter().map(|words| words[0].clone()).collect();
    assert_eq!(commands, ["DELEX", "EVALSHA"]);
}

#[tokio::test]
async fn its_refusal_is_told() {
    let (key, owner) = (Key::new("leasehold", "k").unwrap(), OwnerToken::mint().unwrap());
    let (fake, _) = knowing("-WRONGTYPE Operation against a key\r\n", ":1\r\n").await;
    let error = soon("an answer", store(fake.address()).await.release(&key, &owner)).await.unwrap_err();
    is_told(&error, ErrorKind::Rejected, &["WRONGTYPE"]);
}
