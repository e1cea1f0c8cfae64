//! Looks for what tests need, so that those of a missing server show as ignored, with the reason.
//!
//! In CI everything counts as there: a test whose server is missing fails.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// What is looked for: a `cfg`, the variable that names the program or folder, and the name under which it is looked
/// for in `PATH`.
const PROGRAMS: [(&str, &str, Option<&str>); 5] = [
    ("has_redis_server", "LEASEHOLD_TEST_REDIS_SERVER", Some("redis-server")),
    ("has_valkey_server", "LEASEHOLD_TEST_VALKEY_SERVER", Some("valkey-server")),
    ("has_pgbouncer", "LEASEHOLD_TEST_PGBOUNCER", Some("pgbouncer")),
    // A Python with the package `redis`, which not every Python has.
    ("has_redis_python", "LEASEHOLD_TEST_PYTHON", None),
    // A folder of packages for Node.js, among them `redlock`.
    ("has_node_redlock", "LEASEHOLD_TEST_NODE_MODULES", None),
];

/// Where Debian keeps the programs of PostgreSQL, in a folder for each version.
const POSTGRESQL: &str = "/usr/lib/postgresql";

pub(crate) fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let path = variable("PATH").unwrap_or_default();
    let is_ci = variable("CI").is_some();
    for (name, variable_name, program) in PROGRAMS {
        println!("cargo::rustc-check-cfg=cfg({name})");
        let found = match variable(variable_name) {
            Some(named) => Some(PathBuf::from(named)).filter(|named| named.exists()),
            None => program.and_then(|program| find(&path, program)),
        };
        if found.is_some() || is_ci {
            println!("cargo::rustc-cfg={name}");
        }
    }
    println!("cargo::rustc-check-cfg=cfg(has_postgres)");
    let named = variable("LEASEHOLD_TEST_POSTGRES");
    let versions = fs::read_dir(POSTGRESQL).into_iter().flatten().filter_map(Result::ok);
    let has_postgres = named.is_some_and(|named| PathBuf::from(named).is_file())
        || find(&path, "postgres").is_some()
        || versions.map(|version| version.path().join("bin/postgres")).any(|program| program.is_file());
    if has_postgres || is_ci {
        println!("cargo::rustc-cfg=has_postgres");
    }
    println!("cargo::rerun-if-changed={POSTGRESQL}");
    // Something installed or removed changes its folder.
    for folder in env::split_paths(&path).filter(|folder| folder.is_dir()) {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
}

fn variable(name: &str) -> Option<OsString> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var_os(name).filter(|value| !value.is_empty())
}

fn find(path: &OsString, program: &str) -> Option<PathBuf> {
    env::split_paths(path).map(|folder| folder.join(Path::new(program))).find(|file| file.is_file())
}
