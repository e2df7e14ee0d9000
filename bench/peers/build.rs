//! Tells the program which versions of the peers it was built with, and from which commit.

use std::fs;

#[path = "../../tools/commit.rs"]
mod commit;

fn main() {
    println!("cargo::rerun-if-changed=Cargo.lock");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=../../crates");
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
    commit::tell();
}
