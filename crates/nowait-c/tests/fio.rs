//! The I/O engine of fio: what fio writes through it is on the disk, and errors reach fio. Skipped where
//! fio or its headers are missing: `make fio-engine` gets the headers.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use common::{crate_dir, folder, has, run, shared_library};

const SIZE: u64 = 2 << 20;

fn build() -> Command {
    let mut command = Command::new(crate_dir().join("fio/build"));
    command.env("CC", "gcc");
    command
}

/// The engine, built once for all tests; `None` where fio or its headers are missing.
fn engine() -> Option<&'static Path> {
    static ENGINE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| {
        if !has("gcc", "gcc") {
            return None;
        }
        let engine = shared_library().join("libnowait-fio.so");
        let built = build().arg(&engine).output().unwrap();
        match built.status.code() {
            Some(0) => Some(engine),
            Some(3) => {
                println!("skipped: {}", String::from_utf8_lossy(&built.stderr));
                None
            }
            _ => panic!("{built:?}"),
        }
    });
    engine.as_deref()
}

/// A fio in `dir` that uses the engine.
fn fio(engine: &Path, dir: &Path) -> Command {
    let mut command = Command::new("fio");
    command.current_dir(dir).arg(format!("--ioengine=external:{}", engine.display()));
    command.args(["--name=job", "--filename=file", "--bs=4k", "--fallocate=none", "--output-format=json"]);
    command.arg(format!("--size={SIZE}"));
    command
}

/// The values of a key in JSON, in order.
fn numbers(output: &Output, key: &str) -> Vec<u64> {
    let (text, key) = (String::from_utf8_lossy(&output.stdout), format!("\"{key}\" : "));
    let after = text.split(&key).skip(1);
    after.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()).collect()
}

fn texts(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn has_direct_io(dir: &Path) -> bool {
    let path = dir.join("direct");
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT).open(path).is_ok()
}

#[test]
fn what_fio_wrote_is_verified() {
    let Some(engine) = engine() else { return };
    let dir = folder();
    for depth in [1, 16] {
        for direct in [false, has_direct_io(dir.path())] {
            let job = |more: &[&str]| {
                let mut command = fio(engine, dir.path());
                command.arg(format!("--iodepth={depth}")).arg(format!("--direct={}", u8::from(direct)));
                command.args(["--rw=randwrite", "--verify=crc32c", "--randseed=1"]).args(more);
                command
            };
            let written = run(job(&["--end_fsync=1"]).arg("--do_verify=1"));
            assert_eq!(numbers(&written, "total_ios")[..2], [SIZE / 4096; 2], "{}", texts(&written));
            run(job(&["--verify_only=1"]).arg("--invalidate=1"));
            // A byte of the last block, past its header.
            let file = OpenOptions::new().read(true).write(true).open(dir.path().join("file")).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, SIZE - 7).unwrap();
            file.write_all_at(&[!byte[0]], SIZE - 7).unwrap();
            let damaged = job(&["--verify_only=1"]).output().unwrap();
            assert!(!damaged.status.success() && texts(&damaged).contains("verify failed"), "{}", texts(&damaged));
            fs::remove_file(dir.path().join("file")).unwrap();
        }
    }
}

#[test]
fn jobs_in_processes_and_threads_read_write_and_sync() {
    let Some(engine) = engine() else { return };
    let dir = folder();
    let batches: [&[&str]; 2] = [
        &["--iodepth=8"],
        &[
            "--iodepth=32",
            "--iodepth_batch_submit=8",
            "--iodepth_batch_complete_min=4",
            "--iodepth_batch_complete_max=16",
        ],
    ];
    for how in [&["--iodepth=1"] as &[&str], batches[0], batches[1]] {
        for thread in ["--thread=0", "--thread=1"] {
            for sync in ["--fsync=7", "--fdatasync=7", "--sync_file_range=write:7"] {
                let mut command = fio(engine, dir.path());
                command.args(how).args([thread, sync, "--numjobs=3", "--group_reporting=1", "--rw=randrw"]);
                let output = run(command.arg("--norandommap=1"));
                let ios = numbers(&output, "total_ios");
                assert_eq!(ios[0] + ios[1], 3 * SIZE / 4096, "{}", texts(&output));
                // The last latencies are those of syncs. fio skips some beside reads.
                let syncs = numbers(&output, "N").pop().unwrap();
                assert!(syncs * 14 >= ios[1], "{syncs} syncs, {} writes: {}", ios[1], texts(&output));
            }
        }
    }
}

#[test]
fn jobs_use_several_files() {
    let Some(engine) = engine() else { return };
    let dir = folder();
    let mut command = fio(engine, dir.path());
    run(command.args(["--filename=a:b:c", "--openfiles=2", "--rw=randrw", "--iodepth=8", "--verify=crc32c"]));
    assert!(dir.path().join("c").exists());
}

#[test]
fn workers_that_submit_are_refused() {
    let Some(engine) = engine() else { return };
    let dir = folder();
    let output = fio(engine, dir.path()).args(["--rw=write", "--io_submit_mode=offload"]).output().unwrap();
    assert!(!output.status.success() && texts(&output).contains("offloaded submit"), "{}", texts(&output));
}

#[test]
fn engines_of_the_library_can_be_chosen() {
    let Some(engine) = engine() else { return };
    let dir = folder();
    for chosen in ["auto", "aio", "pool"] {
        let mut command = fio(engine, dir.path());
        run(command.arg(format!("--nowait_engine={chosen}")).args(["--rw=randrw", "--iodepth=8", "--verify=crc32c"]));
    }
}

#[test]
fn an_error_reaches_fio_with_its_text() {
    let Some(engine) = engine() else { return };
    let dir = folder();
    for depth in [1, 8] {
        let job = fio(engine, dir.path());
        let mut command = Command::new("sh");
        // Writes beyond 64 KiB fail with EFBIG, and send no signal.
        command.args(["-c", "trap '' XFSZ && ulimit -f 128 && exec \"$@\"", "sh", "fio"]).args(job.get_args());
        command.args(["--rw=write", "--create_on_open=1"]).arg(format!("--iodepth={depth}")).current_dir(dir.path());
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        let text = texts(&output);
        assert!(text.contains("fio: write file") && text.contains("offset"), "depth {depth}: {text}");
        fs::remove_file(dir.path().join("file")).unwrap();
    }
}

#[test]
fn trims_are_refused() {
    let Some(engine) = engine() else { return };
    let dir = folder();
    let output = fio(engine, dir.path()).arg("--rw=trimwrite").output().unwrap();
    assert!(!output.status.success() && texts(&output).contains("the engine has no trim"), "{}", texts(&output));
}

/// Symptom: the sync was submitted before the writes of its own batch.
#[test]
fn a_sync_comes_after_the_writes_of_its_batch() {
    let Some(engine) = engine() else { return };
    let dir = folder();
    if !has("strace", "strace") || !has_direct_io(dir.path()) {
        return;
    }
    let job = fio(engine, dir.path());
    let mut traced = Command::new("strace");
    traced.current_dir(dir.path()).args(["-f", "-o", "calls", "-e", "trace=fsync,io_uring_enter"]);
    traced.arg("fio").args(job.get_args()).args(["--direct=1", "--rw=write", "--fsync=4"]);
    run(traced.args(["--iodepth=8", "--iodepth_batch=8", "--thread=1"]));
    let calls = fs::read_to_string(dir.path().join("calls")).unwrap();
    if !calls.contains("io_uring_enter(") {
        return println!("skipped: there is no io_uring");
    }
    let before = calls.lines().take_while(|line| !line.contains("fsync("));
    let submitted =
        before.filter_map(|line| line.split_once("io_uring_enter(")?.1.split(", ").nth(1)?.parse::<u32>().ok());
    assert!(submitted.sum::<u32>() >= 4, "{calls}");
}

#[test]
fn headers_of_another_fio_are_refused() {
    if engine().is_none() {
        return;
    }
    let dir = folder();
    let other = dir.path().join("fio");
    fs::write(&other, "#!/bin/sh\necho fio-0.1\n").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let source = std::env::var_os("FIO_SOURCE").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("FIO_CACHE").map(PathBuf::from);
        let cache = fs::read_dir(cache.unwrap_or_else(|| crate_dir().join("../../target/fio"))).unwrap();
        let mut kept = cache.map(|entry| entry.unwrap().path());
        kept.find(|path| path.join("ioengines.h").exists()).unwrap()
    });
    let built = build().arg(dir.path().join("engine.so")).env("PATH", path).env("FIO_SOURCE", source).output().unwrap();
    assert_eq!(built.status.code(), Some(3), "{built:?}");
    assert!(texts(&built).contains("and fio-0.1 is installed"), "{built:?}");
}
