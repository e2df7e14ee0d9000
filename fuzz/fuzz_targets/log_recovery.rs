//! A small log with random changes to its files. Opening it finds the remaining records, or fails. A
//! follower reads in order, or fails. After salvage, the log opens. Nothing panics, and unchanged
//! records are read back unchanged.
#![no_main]

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use nowait::sim::Sim;
use nowait::{Engine, Nowait};
use nowait_log::{Durability, FollowFrom, Followed, Log, Options, Strategy, Submitter, SyncPolicy, follow_in, read_in};

#[allow(dead_code)]
#[path = "../../crates/nowait-log/src/format.rs"]
mod format;

const DIR: &str = "/log";
const SEGMENT_BYTES: u64 = 16 << 10;

#[derive(Arbitrary, Debug)]
enum Change {
    /// Bytes of a file are others.
    Bytes {
        file: u8,
        at: u16,
        bytes: Vec<u8>,
    },
    /// A block is others' and has a checksum that fits.
    Sealed {
        file: u8,
        page: u8,
        epoch: Option<u8>,
        first_lsn: Option<u64>,
        watermark: Option<u64>,
        length: Option<u32>,
    },
    Cut {
        file: u8,
        length: u16,
    },
    Gone {
        file: u8,
    },
    /// One file has the bytes of another.
    Copied {
        from: u8,
        to: u8,
    },
}

fn on(sim: &Sim) -> Nowait {
    Nowait::builder().engine(Engine::Sim(sim.clone())).build().expect("a simulator")
}

fn options(nowait: &Nowait) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 2 };
    Options::new()
        .create(true)
        .instance(nowait)
        .segment_bytes(SEGMENT_BYTES)
        .sync(SyncPolicy::Fixed(strategy))
        .maintenance(false)
}

fn record(lsn: u64) -> Vec<u8> {
    (0..100 + lsn * 37 % 900).map(|at| (lsn + at) as u8).collect()
}

/// Files of a log of three lives, by name.
static FILES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    for _ in 0..3 {
        let (log, recovery) = Log::open(DIR, &options(&nowait)).wait().expect("an empty disk");
        for lsn in recovery.last_lsn + 1..=recovery.last_lsn + 20 {
            let ticket = log.append(&record(lsn)).wait().expect("a disk with room");
            ticket.wait().expect("a sound disk");
            log.maintain();
        }
    }
    let names = nowait.fs().read_dir_names(DIR).wait().expect("a directory");
    let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    let file = |name: String| sim.contents(format!("{DIR}/{name}")).map(|bytes| (name, bytes));
    names.into_iter().filter_map(file).collect()
});

fn change(files: &mut Vec<(String, Vec<u8>)>, change: Change) {
    let count = files.len();
    if count == 0 {
        return;
    }
    match change {
        Change::Bytes { file, at, bytes } => {
            for (to, from) in files[file as usize % count].1.iter_mut().skip(at.into()).zip(bytes) {
                *to = from;
            }
        }
        Change::Sealed { file, page, epoch, first_lsn, watermark, length } => {
            let file = &mut files[file as usize % count].1;
            let id = <format::LogId>::try_from(&FILES[0].1[16..32]).expect("16 bytes");
            let offset = page as usize * format::PAGE;
            let number = file.get(32..40).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
            let Some(block) = file.get_mut(offset..) else { return };
            let Some(mut header) = format::BlockHeader::peek(block, offset as u64) else { return };
            header.epoch = epoch.map_or(header.epoch, u64::from);
            header.first_lsn = first_lsn.unwrap_or(header.first_lsn);
            header.watermark = watermark.unwrap_or(header.watermark);
            header.length = length.unwrap_or(header.length).min((block.len() - format::BLOCK_HEADER_BYTES) as u32);
            let records = &block[format::BLOCK_HEADER_BYTES..][..header.length as usize];
            header.seal(records, format::seed(&id, number, header.epoch)).put(block);
        }
        Change::Cut { file, length } => files[file as usize % count].1.truncate(length.into()),
        Change::Gone { file } => drop(files.remove(file as usize % count)),
        Change::Copied { from, to } => files[to as usize % count].1 = files[from as usize % count].1.clone(),
    }
}

fuzz_target!(|changes: Vec<Change>| {
    let mut files = FILES.clone();
    let changed = !changes.is_empty();
    changes.into_iter().for_each(|one| change(&mut files, one));
    let sim = Sim::new(2);
    for (name, bytes) in files {
        sim.create(format!("{DIR}/{name}"), bytes);
    }
    let nowait = on(&sim);
    if let Ok((mut reader, recovery)) = read_in(&nowait, DIR, 1).wait() {
        let mut last = recovery.first_lsn.saturating_sub(1);
        while let Ok(Some(found)) = reader.next().wait() {
            last = found.lsn;
            assert!(changed || found.bytes == record(found.lsn));
        }
        assert!(changed || last == 60);
    } else {
        assert!(changed);
    }
    if let Ok(mut follower) = follow_in(&nowait, DIR, FollowFrom::Lsn(1)).wait() {
        follower.skip_damage(true);
        let _ = follower.settle();
        let mut next = 1;
        while let Ok(Some(found)) = follower.next() {
            match found {
                Followed::Record { lsn, bytes, .. } => {
                    assert!(lsn >= next && (changed || bytes == record(lsn)));
                    next = lsn + 1;
                }
                Followed::Missing(lsns) => {
                    assert!(changed && lsns.start >= next && lsns.end > lsns.start);
                    next = lsns.end;
                }
                other => panic!("the files do not change, but the follower returned {other:?}"),
            }
        }
        assert!(changed || next == 61);
    } else {
        assert!(changed);
    }
    if let Ok((log, recovery)) = Log::open(DIR, &options(&nowait).create(false).salvage(true)).wait() {
        let lsn = log.append(b"after").wait().expect("a disk with room").wait().expect("a sound disk");
        assert_eq!(lsn, recovery.next_lsn);
        drop(log);
        let (log, again) = Log::open(DIR, &options(&nowait).create(false)).wait().expect("what was salvaged opens");
        assert_eq!((again.last_lsn, again.damage.len()), (lsn, 0));
        drop(log);
    }
});
