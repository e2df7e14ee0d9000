//! Conditions that make figures worth less than they look, set on the system itself and seen noted.
//! In a mount namespace of its own, which goes with the command, however that ends.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// On the disk of the build: the system's temporary directory may be in memory.
fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// `$nowait …`, after what the script does first; with `$dir` as the place for all that it
/// makes. The codes of what is noted; `None` where the system does not let it.
fn noted(dir: &Path, script: &str) -> Option<Vec<String>> {
    let output: Output = match Command::new("unshare")
        .args(["--mount", "sh", "-e", "-c", script])
        .envs([("nowait", Path::new(env!("CARGO_BIN_EXE_nowait-bench"))), ("dir", dir)])
        .output()
    {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: unshare: {error}");
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stderr);
    // The script exits with 77 where it cannot make the trap.
    if said.starts_with("unshare") || output.status.code() == Some(77) {
        eprintln!("skipped: {said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let code = |note: &Value| note["code"].as_str().unwrap().to_owned();
    Some(report["notes"].as_array().unwrap().iter().map(code).collect())
}

fn has(notes: &[String], code: &str) -> bool {
    notes.iter().any(|note| note == code)
}

/// btrfs on a loop device that goes with its mount, at `$dir/mounted`.
const MOUNT: &str = r#"
    mounts() {
        truncate -s 256M "$dir/image" && mkfs.btrfs -q "$dir/image" >&2 && mkdir -p "$dir/mounted" &&
            mount -o "loop,$1" "$dir/image" "$dir/mounted"
    }
"#;

#[test]
fn a_file_system_that_compresses_is_noted() {
    for (options, compresses) in [("compress-force=zstd", true), ("compress=no", false)] {
        let dir = directory();
        let bench =
            r#""$nowait" writes --quick --rounds 1 --depths 1 --ways pwrite --size 1M --dir "$dir/mounted" --json -"#;
        let Some(notes) = noted(dir.path(), &format!("{MOUNT} mounts {options} || exit 77\n {bench}")) else { return };
        assert_eq!(has(&notes, "compressible"), compresses, "{options}: {notes:?}");
    }
}

#[test]
fn a_device_that_reads_far_ahead_is_noted_for_who_reads_in_order() {
    for (sectors, far) in [(8192, true), (256, false)] {
        let dir = directory();
        // A loop device keeps it for whoever has the device next.
        let set = format!(
            r#"device="$(findmnt -n -o SOURCE "$dir/mounted")"; before="$(blockdev --getra "$device")"
            trap 'blockdev --setra "$before" "$device"' EXIT; blockdev --setra {sectors} "$device""#
        );
        // btrfs has a readahead of its own.
        let mount = r#"truncate -s 64M "$dir/image" && mkfs.ext4 -q "$dir/image" && mkdir "$dir/mounted" &&
            mount -o loop "$dir/image" "$dir/mounted" || exit 77"#;
        let bench = r#""$nowait" scan --quick --rounds 1 --blocks 128K --depths 1 --ways pread --size 4M \
            --dir "$dir/mounted" --json -"#;
        let Some(notes) = noted(dir.path(), &format!("{mount}\n {set} || exit 77\n {bench}")) else { return };
        assert_eq!(has(&notes, "read-ahead"), far, "{sectors}: {notes:?}");
    }
}

#[test]
fn a_kernel_that_does_not_count_runs_is_noted() {
    for counts in [false, true] {
        let dir = directory();
        fs::write(dir.path().join("schedstat"), "0 0 0\n").unwrap();
        // The command takes the shell's place, and so its number.
        let hide = if counts { "" } else { r#"mount --bind "$dir/schedstat" /proc/$$/schedstat || exit 77"# };
        let bench = r#"exec "$nowait" cached --quick --rounds 1 --ways ring --size 1M --dir "$dir" --json -"#;
        let Some(notes) = noted(dir.path(), &format!("{hide}\n {bench}")) else { return };
        assert_eq!(has(&notes, "no-scheduler-info"), !counts, "{notes:?}");
    }
}
