//! Tells the command from which commit it was built, where git knows.

use std::process::Command;

fn main() {
    // The command's sources, and the files in which git notes that its head has moved.
    println!("cargo::rerun-if-changed=..");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let mut version = env!("CARGO_PKG_VERSION").to_owned();
    if let Some(commit) = commit() {
        println!("cargo::rustc-env=NOWAIT_COMMIT={commit}");
        version += &format!(" ({commit})");
    }
    println!("cargo::rustc-env=NOWAIT_VERSION={version}");
}

/// `None` where these sources are not git's, as in a package or a copy.
fn commit() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let unchanged = git(&["status", "--porcelain", "--", "..", "../../Cargo.lock"])?.is_empty();
    Some(if unchanged { head } else { format!("{head}-dirty") })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
