//! Looks for the servers that tests of the command need. It is no part of the published package.

#[path = "../store-tests/build.rs"]
mod servers;

fn main() {
    servers::main();
}
