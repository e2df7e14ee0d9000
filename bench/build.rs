//! Tells the program from which commit it was built, where git knows, and which peers it has.

use std::env;
use std::fs;

#[path = "commit.rs"]
mod commit;

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=Cargo.lock");
    if env::var_os("CARGO_FEATURE_PEERS").is_some() {
        tell_versions();
    }
    commit::tell();
}

fn tell_versions() {
    let lock = fs::read_to_string("Cargo.lock").expect("cargo has written Cargo.lock before it builds");
    let mut name = "";
    for line in lock.lines() {
        match line.split_once(" = ") {
            Some(("name", quoted)) => name = quoted.trim_matches('"'),
            Some(("version", quoted)) if !name.is_empty() => {
                let variable = name.to_uppercase().replace('-', "_");
                println!("cargo::rustc-env=VERSION_{variable}={}", quoted.trim_matches('"'));
            }
            _ => {}
        }
    }
}
