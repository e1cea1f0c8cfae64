//! The owner token shows nowhere, whatever is asked for: whoever has it can end the lease.

use std::collections::BTreeSet;
use std::fs;

use leasehold::testkit::Proxy;
use rustix::process::Pid;

use crate::keepers::{KEEP, keepers};
use crate::site::Site;
use crate::support::{BINARY, proc_file, wait_until};

on_stores! { the_owner_token_shows_nowhere }
on_sessions! { the_owner_token_shows_nowhere }

/// Everything that was printed or could be seen, and the subcommands that printed it.
#[derive(Default)]
struct Shown {
    text: Vec<u8>,
    commands: BTreeSet<String>,
}

impl Shown {
    fn add(&mut self, text: impl Into<Vec<u8>>) {
        self.text.extend(text.into());
        self.text.push(b'\n');
    }

    /// Runs a subcommand in all the ways in which messages are written, whatever it comes to.
    fn run(&mut self, site: &Site, arguments: &[&str]) {
        self.commands.insert(arguments[0].to_owned());
        for options in [&["-v"][..], &["-v", "--log-format", "json"]] {
            // Before what belongs to a command that is run.
            let (subcommand, rest) = arguments.split_at(1);
            let ended = site.run([subcommand, options, rest].concat());
            self.add(ended.stdout + &ended.stderr);
        }
    }

    /// What others on the machine can see of a process.
    fn look_at(&mut self, process: Pid) {
        for file in ["cmdline", "environ", "comm", "status"] {
            self.add(fs::read(proc_file(process, file)).unwrap_or_default());
        }
        for file in fs::read_dir(proc_file(process, "fd")).into_iter().flatten().flatten() {
            let opened = fs::read_link(file.path()).unwrap_or_default();
            assert!(!opened.to_string_lossy().contains("owner"), "{opened:?} is open");
            self.add(opened.as_os_str().as_encoded_bytes());
        }
    }
}

fn the_owner_token_shows_nowhere(site: &Site) {
    let mut shown = Shown::default();
    let mut secrets = Vec::new();
    let running = site.hold(
        "ran",
        &["-v", "--reason", "why", "--report", "report", "--owner-file", "own.ran", "--status-fd", "2"],
        "env > environment.ran; touch up; while [ ! -e go ]; do sleep 0.02; done",
    );
    let kept = site.script(&format!("{KEEP}; env > environment.kept; leasehold extend k -v; touch on; exec sleep 60"));
    wait_until("both hold a key", || site.path("up").exists() && site.path("on").exists());
    let waiting = site.start(site.command(["run", "ran", "-v", "--log-format", "json", "--", "true"]));
    wait_until("it waits", || waiting.stderr().contains("waiting"));
    secrets.push(site.read("own.ran"));
    let owners = fs::read_dir(site.path("state/leasehold/owners")).unwrap();
    secrets.extend(owners.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()));
    assert_eq!(secrets.len(), 2);
    assert_eq!(keepers(site).len(), 1);

    for process in site.survivors() {
        shown.look_at(process);
    }
    for name in ["environment.ran", "environment.kept"] {
        shown.add(site.read(name));
    }
    let way = if site.is_session() { "--keeper=1" } else { "--ttl=1m" };
    shown.run(site, &["acquire", "ran", "-n", way, "--format", "json"]);
    shown.run(site, &["acquire", "left", "-n", way, "--owner-file", "own.left", "--format", "json"]);
    secrets.extend(Some(site.read("own.left")).filter(|secret| !secret.is_empty()));
    shown.run(site, &["hold", "ran", "-n", "--for", "1m", "--reason", "why", "--format", "shell"]);
    shown.run(site, &["extend", "left", "--owner-file", "own.left"]);
    shown.run(site, &["extend", "other", "--owner-file", "own.left"]);
    shown.run(site, &["release", "other", "--owner-file", "own.left"]);
    shown.run(site, &["resume", "other", "--from", "own.left", "--", "env"]);
    shown.run(site, &["run", "ran", "-w", "50ms", "--", "true"]);
    shown.run(site, &["show", "ran"]);
    shown.run(site, &["show", "ran", "--json"]);
    shown.run(site, &["list"]);
    shown.run(site, &["list", "--json"]);
    shown.run(site, &["wait", "ran", "-w", "0"]);
    shown.run(site, &["config", "show", "--json"]);
    shown.run(site, &["bench", "--count", "3"]);
    shown.run(site, &["doctor"]);
    shown.run(site, &["doctor", "--json"]);
    shown.run(site, &["elect", "leader", "--", "env"]);
    let date = site.start(site.program(["date", "-u", "+%FT%TZ"])).finish().expect(0).stdout;
    shown.run(site, &["cron", "report", "--tick", date.trim(), "--", "env"]);
    for command in ["stores", "version"] {
        shown.run(site, &[command, "--json"]);
    }
    shown.run(site, &["force-release", "ran"]);
    outage(site, &mut shown);
    let ps = site.start(site.program(["ps", "axeww"])).finish().expect(0);
    shown.add(ps.stdout);
    // By now the first resumes have come to something.
    shown.run(site, &["resume", "left", "--from", "own.left", "--owner-file", "own.left", "--", "env"]);
    shown.run(site, &["release", "left", "--owner-file", "own.left"]);
    fs::write(site.path("go"), "").unwrap();
    for ended in [running.finish(), waiting.finish()] {
        shown.add(ended.expect(0).stderr);
    }
    shown.run(site, &["force-release", "k", "--yes", "--json"]);
    shown.add(site.read("report") + &kept.stdout() + &kept.stderr());
    for keeper in keepers(site) {
        rustix::process::kill_process(keeper, rustix::process::Signal::TERM).ok();
    }
    is_complete(site, &shown.commands);
    let text = String::from_utf8_lossy(&shown.text);
    for part in ["LEASEHOLD_OWNER_FILE=", "__keep", "leasehold.run/1", "leasehold.acquire/1", "leasehold.doctor/1"] {
        assert!(text.contains(part), "{part} is not there");
    }
    for secret in secrets {
        let token = secret.lines().next().unwrap();
        assert_eq!(token.len(), 32);
        // Nor half of it.
        assert!(!text.contains(&token[..16]) && !text.contains(&token[16..]), "the owner token is shown");
    }
}

/// What is said while the store is out of reach.
fn outage(site: &Site, shown: &mut Shown) {
    if site.is_file() {
        return;
    }
    let proxy = Proxy::start(site.server().address()).unwrap();
    proxy.refuse();
    let url = site.url_at(proxy.address());
    for command in ["extend", "release"] {
        shown.run(site, &[command, "left", "-s", &url, "--owner-file", "own.left"]);
    }
    shown.run(site, &["resume", "left", "-s", &url, "--from", "own.left", "--", "true"]);
}

/// Every subcommand that prints anything about leases was asked.
fn is_complete(site: &Site, commands: &BTreeSet<String>) {
    let help = site.run(["--help"]).expect(0).stdout;
    let listed = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter_map(|line| {
        // What begins further to the right goes on with the line above.
        line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split_whitespace().next()
    });
    let listed: Vec<_> = names.collect();
    assert!(listed.len() > 10, "{help} of {BINARY}");
    for command in listed {
        let says_nothing = ["help", "completions", "man"].contains(&command);
        assert!(says_nothing || commands.contains(command), "{command} was not asked");
    }
}
