//! Every dependency builds with the oldest Rust that the workspace promises, as far as the
//! dependency says. Needs no other toolchain.

use std::process::Command;

use serde_json::Value;

/// Packages that promise no Rust version, and were built with ours in this version.
const BUILT: [(&str, &str); 15] = [
    ("approx", "0.5.1"),
    ("cfg_aliases", "0.2.2"),
    ("crc32c", "0.6.9"),
    ("globset", "0.4.19"),
    ("hdrhistogram", "7.5.4"),
    ("maud", "0.27.0"),
    ("maud_macros", "0.27.0"),
    ("proc-macro2-diagnostics", "0.10.1"),
    ("scopeguard", "1.2.0"),
    ("seccompiler", "0.5.0"),
    ("signal-hook", "0.3.18"),
    ("smallvec", "1.16.5"),
    ("stable_deref_trait", "1.2.1"),
    ("utf8parse", "0.2.2"),
    ("version_check", "0.9.5"),
];

/// `1.85` and `1.85.0` are the same.
fn number(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap_or(0))
}

#[test]
fn no_dependency_needs_a_later_rust() {
    // Linux only: the lock file also lists packages that other systems need.
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1", "--all-features"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu", "--manifest-path", env!("CARGO_MANIFEST_PATH")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let promised = number(env!("CARGO_PKG_RUST_VERSION"));

    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "{} packages: these are not all", packages.len());
    let text = |package: &Value, key: &str| package[key].as_str().map(str::to_string);
    let wrong: Vec<String> = packages
        .iter()
        .filter_map(|package| {
            let (name, version) = (text(package, "name").unwrap(), text(package, "version").unwrap());
            match text(package, "rust_version") {
                Some(needed) if number(&needed) > promised => Some(format!("{name} {version} needs Rust {needed}")),
                Some(_) => None,
                None if BUILT.contains(&(&name, &version)) => None,
                None => {
                    Some(format!("{name} {version} does not say: build it with the promised Rust, then list it here"))
                }
            }
        })
        .collect();
    assert!(wrong.is_empty(), "Rust {promised:?} is promised, but\n{}", wrong.join("\n"));
}
