//! Tells the programs from which commit they were built, where git knows.

use std::process::Command;

fn main() {
    for sources in ["src", "../stores", "../datafusion", "../ballista", "../Cargo.lock", "../../crates"] {
        println!("cargo::rerun-if-changed={sources}");
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
