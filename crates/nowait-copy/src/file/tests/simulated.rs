//! On a disk that fails, fills up or crashes, the name refers to the complete old or new file.

use std::path::Path;
use std::sync::{Arc, Mutex};

use nowait::sim::{Faults, Sim};
use nowait::{Engine, Nowait};

use super::bytes;
use crate::error::Result;
use crate::file::{FileOutcome, copy_by_instance};
use crate::options::{Options, SyncPolicy};
use crate::shared::Shared;

const OLD: &[u8] = b"the old file";

fn copy(sim: &Sim, options: &Options) -> Result<FileOutcome> {
    let instance = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    let shared = Shared::new(options.clone().instance(&instance));
    let outcome = copy_by_instance(&shared, Path::new("/from/source"), Path::new("/to/target"));
    instance.drain();
    outcome
}

fn disk(seed: u64, contents: &[u8]) -> Sim {
    let sim = Sim::new(seed);
    sim.create("/from/source", contents);
    sim.create("/to/target", OLD);
    sim
}

/// Sets the chance of a fault.
type Set = fn(&mut Faults);

/// Chooses plain or direct requests.
fn ways(seed: u64) -> Options {
    Options::new().cache_neutral(seed % 2 == 0).block_bytes(4096 << (seed % 3)).verify(seed % 5 == 0)
}

/// Contents of a seed's source: short or of many requests, with an unaligned end.
fn contents(seed: u64) -> Vec<u8> {
    bytes([10, 5000, 70_000, 200_001][seed as usize % 4], seed)
}

#[test]
fn a_disk_that_fails_leaves_the_old_file() {
    let faults: [(&str, Set); 7] = [
        ("I/O errors", |faults| faults.io_error = 0.03),
        ("failed reads", |faults| faults.read_error = 0.05),
        ("failed writes", |faults| faults.write_error = 0.05),
        ("a full disk", |faults| faults.no_space = 0.05),
        ("failed syncs", |faults| faults.sync_error = 0.3),
        ("failed write-back", |faults| faults.writeback_error = 0.05),
        ("a failed close", |faults| faults.close_error = 0.5),
    ];
    for (what, set) in faults {
        let (mut failed, mut succeeded) = (0, 0);
        for seed in 0..100 {
            let contents = contents(seed);
            let sim = disk(seed, &contents);
            let mut chances = some_faults();
            set(&mut chances);
            sim.set_faults(chances);
            let outcome = copy(&sim, &ways(seed).sync(SyncPolicy::File));
            sim.set_faults(Faults::default());
            let now = sim.contents("/to/target").unwrap();
            match outcome {
                Ok(_) => {
                    succeeded += 1;
                    assert!(now == contents, "{what}, seed {seed}: not what was copied");
                    // The copy was reported durable.
                    let after = sim.crash(|_, _| false).contents("/to/target").unwrap();
                    assert!(after == contents, "{what}, seed {seed}: lost in a crash");
                }
                Err(failure) => {
                    failed += 1;
                    // The directory is synced after the rename, so the new file may have its name.
                    let is_whole = now == OLD || now == contents;
                    assert!(is_whole, "{what}, seed {seed}: {failure}, and {} bytes", now.len());
                    assert!(failure.raw_os_error().is_some(), "{what}, seed {seed}: {failure:?}");
                }
            }
            assert_eq!(left(&sim), ["target"], "{what}, seed {seed}: temporary files");
        }
        assert!(failed > 5 && succeeded > 5, "{what}: {failed} of 100 failed");
    }
}

/// Calls that are refused, short, empty or interrupted, which must not fail the copy.
fn some_faults() -> Faults {
    let mut faults = Faults::default();
    (faults.not_now, faults.empty_now, faults.short_now) = (0.2, 0.1, 0.2);
    (faults.short, faults.interrupted) = (0.1, 0.1);
    faults
}

#[test]
fn a_disk_of_any_size_has_the_old_file_or_the_new() {
    let contents = bytes(100_000, 1);
    let (mut failed, mut succeeded) = (0, 0);
    for seed in 0..50 {
        let sim = disk(seed, &contents);
        sim.set_capacity(contents.len() as u64 + OLD.len() as u64 + seed * 2500);
        match copy(&sim, &ways(seed)) {
            Ok(_) => {
                succeeded += 1;
                assert!(sim.contents("/to/target").unwrap() == contents, "seed {seed}");
            }
            Err(failure) => {
                failed += 1;
                assert_eq!(failure.kind(), crate::FailureKind::System(nowait::ErrorKind::NoSpace), "{failure}");
                assert_eq!(sim.contents("/to/target").unwrap(), OLD, "seed {seed}: {failure}");
            }
        }
        assert_eq!(left(&sim), ["target"], "seed {seed}");
    }
    assert!(failed >= 35 && succeeded >= 5, "{failed} failed, {succeeded} did not");
}

/// Simulates a power loss before each change that the copy makes, and after the last one.
#[test]
fn a_crash_at_any_moment_leaves_the_old_file_or_the_new() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..60 {
        let contents = contents(seed);
        let sim = disk(seed, &contents);
        let crashed: Arc<Mutex<Vec<Sim>>> = Arc::default();
        let keep = crashed.clone();
        sim.watch(move |sim| {
            let mut crashed = keep.lock().unwrap();
            for _ in 0..3 {
                let number = crashed.len() as u64;
                crashed.push(sim.crash_at_random(seed << 20 | number));
            }
        });
        copy(&sim, &ways(seed).sync(SyncPolicy::File)).unwrap();
        let mut crashed = std::mem::take(&mut *crashed.lock().unwrap());
        assert!(crashed.len() >= 9, "{} moments", crashed.len());
        crashed.push(sim.crash(|_, _| false));
        let last = crashed.len() - 1;
        for (moment, after) in crashed.iter().enumerate() {
            let now = after.contents("/to/target").unwrap();
            assert!(now == OLD || now == contents, "seed {seed}, moment {moment}: {} bytes", now.len());
            if now == OLD {
                old += 1
            } else {
                new += 1
            }
            assert!(moment < last || now == contents, "seed {seed}: lost after it was said to be durable");
        }
    }
    assert!(old > 100 && new > 60, "{old} old, {new} new");
}

/// Names in the target's directory.
fn left(sim: &Sim) -> Vec<String> {
    let instance = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    let names = instance.fs().read_dir_names("/to").wait().unwrap();
    names.into_iter().map(|name| name.into_string().unwrap()).collect()
}
