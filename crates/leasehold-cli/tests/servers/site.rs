//! A store of each kind, and a place whose commands use it.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use leasehold::testkit::Server;
use store_tests::{Table, redis};

use crate::support::{BINARY, Finished, Place, Running};

/// A place whose commands use a store of the test's own.
#[derive(Debug)]
pub(crate) struct Site {
    place: Place,
    store: Kept,
}

/// Where leases are kept.
#[derive(Clone, Debug)]
enum Kept {
    File,
    Redis(Arc<Server>),
    /// With the mode in which it is used.
    Postgres(Table, &'static str),
}

impl Kept {
    /// How it is named behind another address.
    fn url_at(&self, address: SocketAddr) -> String {
        match self {
            Self::File => panic!("a file has no address"),
            Self::Redis(_) => format!("redis://{address}"),
            Self::Postgres(table, mode) => format!("{}?mode={mode}", table.url_at(address)),
        }
    }

    fn server(&self) -> &Server {
        match self {
            Self::File => panic!("a file has no server"),
            Self::Redis(server) => server,
            Self::Postgres(table, _) => table.server(),
        }
    }
}

impl Site {
    pub(crate) fn file() -> Self {
        Self { place: Place::new(), store: Kept::File }
    }

    pub(crate) fn redis() -> Self {
        Self::on(Kept::Redis(Arc::new(redis().start().unwrap())))
    }

    pub(crate) fn postgres() -> Self {
        Self::on(Kept::Postgres(Table::new(), "table"))
    }

    /// Locks that end with a connection.
    pub(crate) fn session(mode: &'static str) -> Self {
        Self::on(Kept::Postgres(Table::new(), mode))
    }

    fn on(store: Kept) -> Self {
        let url = store.url_at(store.server().address());
        Self { place: Place::on(url), store }
    }

    /// How the store is named behind another address.
    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        self.store.url_at(address)
    }

    pub(crate) fn server(&self) -> &Server {
        self.store.server()
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.store, Kept::File)
    }

    /// Whether leases end with the connection of their holder.
    pub(crate) fn is_session(&self) -> bool {
        matches!(self.store, Kept::Postgres(_, "advisory" | "xact"))
    }

    /// Whether a lease of a process that died is free at once.
    pub(crate) fn frees_the_dead(&self) -> bool {
        matches!(self.store, Kept::File) || self.is_session()
    }

    /// Starts a shell script that finds the binary as `leasehold`.
    pub(crate) fn script(&self, text: &str) -> Running {
        let shell = format!("leasehold() {{ '{BINARY}' \"$@\"; }}\n{text}");
        self.start(self.program(["sh", "-c", &shell]))
    }

    pub(crate) fn finished(&self, text: &str) -> Finished {
        self.script(text).finish()
    }
}

impl Deref for Site {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

/// Makes tests of functions that are given a [`Site`]: on a file, on Redis and on a table of PostgreSQL; behind a
/// semicolon those that take a server.
macro_rules! on_stores {
    ($($test:ident)* $(; $($remote:ident)*)?) => {
        mod on_a_file {
            $(#[test] fn $test() { super::$test(&crate::site::Site::file()); })*
        }
        on_servers! { $($test)* $($($remote)*)? }
    };
}

/// On Redis and on a table of PostgreSQL.
macro_rules! on_servers {
    ($($test:ident)*) => {
        mod on_redis {
            $(
                #[test]
                #[cfg_attr(not(has_redis_server), ignore = "redis-server is not installed")]
                fn $test() { super::$test(&crate::site::Site::redis()); }
            )*
        }
        mod on_postgres {
            $(
                #[test]
                #[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
                fn $test() { super::$test(&crate::site::Site::postgres()); }
            )*
        }
    };
}

/// On locks of sessions of PostgreSQL, and on those of transactions.
macro_rules! on_sessions {
    ($($test:ident)*) => {
        mod on_sessions {
            $(
                #[test]
                #[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
                fn $test() { super::$test(&crate::site::Site::session("advisory")); }
            )*
        }
        mod on_transactions {
            $(
                #[test]
                #[cfg_attr(not(has_postgres), ignore = "postgres is not installed")]
                fn $test() { super::$test(&crate::site::Site::session("xact")); }
            )*
        }
    };
}
