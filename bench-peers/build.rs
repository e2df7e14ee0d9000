//! Tells the program which versions of the peers it was built with, and from which commit, where
//! git knows.

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
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    if let Some(commit) = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]) {
        println!("cargo::rustc-env=NOWAIT_COMMIT={commit}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
