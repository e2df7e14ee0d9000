//! Modes of a log's directory and files. Windows has no modes.

#![cfg(unix)]

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::mounts;
use nowait::ErrorKind;
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy};

fn options() -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    let options = Options::new().create(true).sync(SyncPolicy::Fixed(strategy)).maintenance(false);
    options.segment_bytes(32 << 10).first_segment_bytes(16 << 10)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Modes of the files, by name.
fn modes(dir: &Path) -> BTreeMap<String, u32> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), mode(&path))).collect()
}

fn append(log: &Log, count: u64) {
    for _ in 0..count {
        log.append(&[7; 3000]).wait().unwrap().wait().unwrap();
        while log.maintain() {}
    }
}

/// A single test, since the umask belongs to the whole process.
#[test]
fn files_have_the_modes_that_their_directory_or_an_administrator_gives() {
    let dir = mounts::temp_dir();
    for mask in [0o022, 0o077, 0_u16] {
        // SAFETY: no memory is passed.
        unsafe {
            libc::umask(mask.into());
        }
        // Modes from the directory.
        for (of_dir, of_files) in [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644), (0o2770, 0o660)] {
            let path = dir.path().join(format!("log-{mask:o}-{of_dir:o}"));
            fs::create_dir(&path).unwrap();
            chmod(&path, of_dir);
            let (log, _) = Log::open(&path, &options()).wait().unwrap();
            append(&log, 30);
            let found = modes(&path);
            assert!(found.len() > 4 && found.values().all(|mode| *mode == of_files), "{of_dir:o}: {found:?}");
            assert_eq!(mode(&path), of_dir);
            log.close().wait().unwrap();
        }
        // The mode from the option, for a new directory and for an existing one.
        for is_there in [false, true] {
            let path = dir.path().join(format!("made-{mask:o}-{is_there}"));
            if is_there {
                fs::create_dir(&path).unwrap();
                chmod(&path, 0o755);
            }
            let (log, _) = Log::open(&path, &options().mode(0o2750)).wait().unwrap();
            append(&log, 30);
            assert_eq!(mode(&path), if is_there { 0o755 } else { 0o2750 });
            let found = modes(&path);
            assert!(found.values().all(|mode| *mode == 0o640), "{found:?}");
            // An administrator's change, narrower or wider, applies to new and recycled segments and
            // to the control file, also after the log is reopened.
            for changed in [0o600, 0o664] {
                for name in modes(&path).keys() {
                    chmod(&path.join(name), changed);
                }
                append(&log, 20);
                log.truncate_prefix(log.durable_lsn());
                append(&log, 20);
                let found = modes(&path);
                assert!(found.values().all(|mode| *mode == changed), "{changed:o}: {found:?}");
            }
            let newest = modes(&path).keys().rfind(|name| name.ends_with(".seg")).unwrap().clone();
            chmod(&path.join(newest), 0o600);
            let recycled = log.stats().segments_recycled;
            for _ in 0..4 {
                log.truncate_prefix(log.durable_lsn());
                append(&log, 10);
            }
            assert!(log.stats().segments_recycled > recycled);
            let found = modes(&path);
            assert!(found.iter().all(|(name, mode)| *mode == 0o600 || !name.ends_with(".seg")), "{found:?}");
            log.close().wait().unwrap();
            let (log, _) = Log::open(&path, &options().mode(0o777)).wait().unwrap();
            append(&log, 20);
            let found = modes(&path);
            assert!(found.iter().all(|(name, mode)| *mode == 0o600 || !name.ends_with(".seg")), "{found:?}");
            assert_eq!(found["control"], 0o664);
            log.close().wait().unwrap();
        }
    }
    for wrong in [0o640, 0, 0o10700] {
        let error = Log::open(dir.path().join("wrong"), &options().mode(wrong)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{wrong:o}: {error}");
    }
}
