//! Tells the program which versions of the peers it was built with, and from which commit, where git knows.

use std::fs;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=Cargo.lock");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=../crates");
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
    let described =
        Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]).output();
    if let Some(output) = described.ok().filter(|output| output.status.success()) {
        println!("cargo::rustc-env=NOWAIT_COMMIT={}", String::from_utf8_lossy(&output.stdout).trim());
    }
}
