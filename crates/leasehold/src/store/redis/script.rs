//! The scripts that decide in one step on the server.

use std::sync::LazyLock;

use redis::Cmd;

/// A script, with the hash by which a server that has seen it knows it.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

macro_rules! scripts {
    ($($name:ident: $($file:literal)+;)+) => {$(
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::of(concat!($(include_str!(concat!("scripts/", $file)), "\n"),+)));
    )+};
}

scripts! {
    ACQUIRE: "grant.lua" "line.lua" "acquire.lua";
    EXTEND: "primary.lua" "grant.lua" "extend.lua";
    RELEASE: "primary.lua" "release.lua";
    TRANSFER: "primary.lua" "grant.lua" "transfer.lua";
    LOOK: "look.lua";
    INSPECT: "primary.lua" "inspect.lua";
    FORCE_RELEASE: "primary.lua" "grant.lua" "force_release.lua";
}

/// What a script gets beside its keys.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument<'a> {
    Bytes(&'a [u8]),
    Number(u64),
}

/// A run of a script, not yet in words for the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    script: &'a Script,
    keys: &'a [&'a str],
    arguments: &'a [Argument<'a>],
}

impl Script {
    fn of(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }

    pub(super) fn on<'a>(&'a self, keys: &'a [&'a str], arguments: &'a [Argument<'a>]) -> Call<'a> {
        Call { script: self, keys, arguments }
    }
}

impl Call<'_> {
    /// The key that decides where it is run.
    pub(super) fn key(&self) -> &str {
        self.keys.first().copied().unwrap_or_default()
    }

    /// For a server that knows the script.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// For one that does not, and knows it from then on.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(self.keys);
        for argument in self.arguments {
            match argument {
                Argument::Bytes(bytes) => command.arg(bytes),
                Argument::Number(number) => command.arg(number),
            };
        }
        command
    }
}
