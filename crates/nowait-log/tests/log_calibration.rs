//! How a log measures its strategy, when it does so again, and what it tells of it.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use common::{eventually, mounts};
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy, inspect};

/// Changes a number of the control file, in both copies.
fn set(log: &Path, at: usize, number: u64) {
    let mut bytes = fs::read(log.join("control")).unwrap();
    for page in bytes.chunks_exact_mut(4096) {
        page[at..at + 8].copy_from_slice(&number.to_le_bytes());
        let crc = crc32c::crc32c(&page[12..]);
        page[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(log.join("control"), bytes).unwrap();
}

#[test]
fn a_strategy_is_measured_and_measured_again() {
    const TIME: usize = 72;
    const DEVICE: usize = 80;
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let options = Options::new().create(true).segment_bytes(64 << 10);
    let began = SystemTime::now() - Duration::from_secs(2);
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    let measured = log.stats().calibration.unwrap();
    assert!(measured.at > began && !measured.candidates.is_empty(), "{measured:?}");
    println!("{:?} of {measured:?}", log.strategy());
    let chosen = log.strategy();
    assert!(measured.candidates.iter().any(|(tried, time)| *tried == chosen && *time > Duration::ZERO));
    log.close().wait().unwrap();
    assert_eq!(inspect(&path).wait().unwrap().calibration.as_ref(), Some(&measured));

    // Long ago: an idle log measures again, and goes on as it is until it is opened anew.
    set(&path, TIME, 1_600_000_000);
    let (log, recovery) = Log::open(&path, &options).wait().unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    assert_eq!(recovery.calibration.unwrap().at, old);
    let ticket = log.append(b"not idle").wait().unwrap();
    ticket.wait().unwrap();
    assert!(eventually(|| inspect(&path).wait().unwrap().calibration.unwrap().at > began));
    assert_eq!(log.strategy(), chosen);
    log.close().wait().unwrap();

    // Elsewhere: at once.
    set(&path, TIME, 1_600_000_000);
    set(&path, DEVICE, 1 << 60);
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    assert!(log.stats().calibration.unwrap().at > began);
    log.close().wait().unwrap();
    assert!(inspect(&path).wait().unwrap().calibration.unwrap().at > began);

    // A strategy that is given is used and not recorded.
    let strategy = Strategy { durability: Durability::WriteAndSync, by: Submitter::Call, depth: 1 };
    let before = inspect(&path).wait().unwrap().strategy;
    let (log, _) = Log::open(&path, &options.sync(SyncPolicy::Fixed(strategy))).wait().unwrap();
    assert_eq!(log.strategy(), strategy);
    log.append(b"so").wait().unwrap().wait().unwrap();
    log.close().wait().unwrap();
    assert_eq!(inspect(&path).wait().unwrap().strategy, before);
}
