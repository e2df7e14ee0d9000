//! No sync says that all is well over data that the device never got, however it and what goes on
//! beside it are called.
//!
//! ext4 without a journal, which goes on after an error, lies on a device that has no room for the
//! pages it promised: their write-back fails, and the kernel says so once to each open file
//! description. Threads sync a file and write it durably at the same time, each in a way of its
//! own; whether the data is there is seen past the page cache. `NOWAIT_TEST_ROUNDS` says how many
//! rounds each kind of file has.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use crate::common::mounts::{Kind, Mount, or_skip};
use crate::common::rng::Rng;
use crate::common::{Watchdog, Way};
use nowait::sim::{Faults, Sim};
use nowait::stream::Writer;
use nowait::{Buf, Engine, File, Nowait, OpenOptions};

const PAGE: usize = 4096;
/// Pages that the device has no room for, and where they begin.
const LOST: std::ops::Range<usize> = 16..20;

fn rounds() -> usize {
    match std::env::var("NOWAIT_TEST_ROUNDS") {
        Ok(text) => text.parse().expect("NOWAIT_TEST_ROUNDS is a number"),
        Err(_) => 150,
    }
}

/// A file system whose device is full.
struct FullDevice {
    // Unmounted first.
    mount: Mount,
    fill: fs::File,
    _backing: Mount,
}

impl FullDevice {
    /// With files whose first page has its place, and whose `LOST` pages have none.
    fn new(files: &[&str]) -> Result<FullDevice, String> {
        let backing = Mount::sized(Kind::Tmpfs, 32 << 20)?;
        let image = backing.path().join("image");
        let sparse = fs::File::create(&image).and_then(|file| file.set_len(128 << 20));
        sparse.map_err(|error| error.to_string())?;
        let mount = Mount::ext4_in(&image, false)?;
        for name in files {
            let path = mount.path().join(name);
            let made = fs::File::create(&path).and_then(|file| {
                // Blocks, and nothing in them.
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, (LOST.end * PAGE) as u64)?;
                file.write_all_at(&[1; PAGE], 0)?;
                file.sync_all()
            });
            made.map_err(|error| error.to_string())?;
        }
        let fill = fs::File::create(backing.path().join("fill")).map_err(|error| error.to_string())?;
        let device = FullDevice { mount, fill, _backing: backing };
        device.fill_up();
        Ok(device)
    }

    /// Takes the room that has become free. The loop device makes holes where ext4 zeroes blocks;
    /// without this, Linux 5.10 loses no data from some round on.
    fn fill_up(&self) {
        let mut at = self.fill.metadata().unwrap().len();
        while let Ok(n @ 1..) = self.fill.write_at(&[0; PAGE], at) {
            at += n as u64;
        }
    }
}

/// Runs one thread's part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    SyncData(Way),
    SyncAll(Way),
    StreamSync,
    SyncRange(Way),
    Durable(Way),
    /// These are durable where the file was opened so.
    WriteFrom,
    WriteMany(Way),
    Stream,
}

impl Act {
    fn any(rng: &mut Rng) -> Act {
        let way = Way::ALL[rng.below(3)];
        match rng.below(8) {
            0 => Act::SyncAll(way),
            1 => Act::StreamSync,
            2 => Act::SyncRange(way),
            3 | 4 => Act::Durable(way),
            5 => Act::WriteFrom,
            6 => Act::WriteMany(way),
            _ => Act::Stream,
        }
    }

    fn syncs(self) -> bool {
        matches!(self, Act::SyncData(_) | Act::SyncAll(_) | Act::StreamSync)
    }

    /// Does it; whether it said that all is well.
    fn run(self, file: &File) -> bool {
        let page = || {
            let mut page = Buf::zeroed(PAGE);
            page.fill(3);
            page
        };
        match self {
            Act::SyncData(way) => way.run(file.sync_data()).is_ok(),
            Act::SyncAll(way) => way.run(file.sync_all()).is_ok(),
            Act::StreamSync => Writer::new(file, PAGE as u64).sync_data().wait().is_ok(),
            Act::SyncRange(way) => way.run(file.sync_range(0, 0)).is_ok(),
            Act::Durable(way) => way.run(file.write_all_at(page(), 0).durable()).is_ok(),
            Act::WriteFrom => file.write_all_from(&page(), 0).is_ok(),
            Act::WriteMany(Way::Waited) => file.write_many(vec![(0, page())]).wait().is_ok(),
            Act::WriteMany(way) => way.run_future(file.write_many(vec![(0, page())])).is_ok(),
            Act::Stream => {
                let mut writer = Writer::new(file, 0);
                writer.put(page()).wait().is_ok() && writer.finish().wait().is_ok()
            }
        }
    }
}

/// All at once; what each said.
fn at_once(file: &File, acts: &[Act]) -> Vec<bool> {
    let start = Barrier::new(acts.len());
    std::thread::scope(|scope| {
        let run = |act: &Act| {
            let (act, start) = (*act, &start);
            scope.spawn(move || {
                start.wait();
                act.run(file)
            })
        };
        let threads: Vec<_> = acts.iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn acts(rng: &mut Rng) -> Vec<Act> {
    let mut acts: Vec<Act> = (0..1 + rng.below(3)).map(|_| Act::any(rng)).collect();
    acts.push(Act::SyncData(Way::ALL[rng.below(3)]));
    acts
}

fn is_lost(path: &Path, data: &[u8]) -> bool {
    let file = fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut there = Buf::zeroed(data.len());
    !matches!(file.read_at(&mut there, (LOST.start * PAGE) as u64), Ok(n) if n == data.len() && there[..] == *data)
}

/// Rounds on a file that is opened in a way of its own. Returns how many lost data.
fn torture(nowait: &Nowait, device: &FullDevice, path: &Path, open: &dyn Fn() -> OpenOptions, rng: &mut Rng) -> usize {
    let other = fs::File::options().read(true).write(true).open(path).unwrap();
    let (mut lost, mut told) = (0, 0);
    for round in 0..rounds() {
        let file = open().open_in(nowait, path).wait().unwrap();
        device.fill_up();
        let fails = rng.below(8) > 0;
        let data = vec![round as u8 | 1; LOST.len() * PAGE];
        if fails {
            other.write_all_at(&data, (LOST.start * PAGE) as u64).unwrap();
        }
        let acts = acts(rng);
        let said = at_once(&file, &acts);
        if fails && is_lost(path, &data) {
            lost += 1;
            for (act, fine) in acts.iter().zip(&said) {
                told += usize::from(!fine);
                assert!(
                    !act.syncs() || !fine,
                    "round {round}: {act:?} of {acts:?} is fine with {path:?}, and data is lost"
                );
            }
            // And goes on to say so, until it is acknowledged.
            assert!(file.sync_data().wait().is_err() && file.acknowledge_sync_failure().is_some());
        } else if !fails {
            assert!(said.iter().all(|fine| *fine), "round {round}: nothing was lost: {acts:?} said {said:?}");
        }
        nowait.drain();
        // The failure is reported here too, and to nobody who opens the file from now on.
        while other.sync_all().is_err() {}
    }
    eprintln!("{}: {lost} rounds lost data, {told} calls were told", path.display());
    lost
}

fn plain() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

fn on_a_full_device(builder: nowait::Builder) {
    let _watchdog = Watchdog::new("lost writes", 120 + rounds() as u64);
    let names = ["plain", "dsync", "sync", "direct", "direct-dsync"];
    let Some(device) = or_skip("a full device", FullDevice::new(&names)) else { return };
    let nowait = builder.build().unwrap();
    let mut rng = Rng::for_test();
    let mut lost = 0;
    for name in names {
        let path: PathBuf = device.mount.path().join(name);
        let open = || {
            let mut options = plain();
            options.direct(name.starts_with("direct"));
            match name {
                "dsync" | "direct-dsync" => options.custom_flags(libc::O_DSYNC),
                "sync" => options.custom_flags(libc::O_SYNC),
                _ => &mut options,
            };
            options
        };
        lost += torture(&nowait, &device, &path, &open, &mut rng);
    }
    // Of all files together: Linux 5.10 finds room for most of it in the end.
    assert!(lost * 8 > rounds(), "the device took what it has no room for: {lost} rounds lost data");
}

#[test]
fn auto() {
    on_a_full_device(Nowait::builder());
}

#[test]
fn pool() {
    on_a_full_device(Nowait::builder().engine(Engine::Pool));
}

#[test]
fn libaio() {
    on_a_full_device(Nowait::builder().engine(Engine::Aio));
}

/// The simulated disk forgets what it was to write back, and says so once. What a crash would leave
/// is the oracle.
#[test]
fn simulator() {
    let _watchdog = Watchdog::new("lost writes in the simulator", 120 + rounds() as u64);
    let mut rng = Rng::for_test();
    let mut lost = 0;
    for round in 0..rounds() * 5 {
        let sim = Sim::new(rng.next());
        sim.create("file", vec![1; LOST.end * PAGE]);
        let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
        let file = plain().open_in(&nowait, "file").wait().unwrap();
        let mut faults = Faults::default();
        faults.writeback_error = [0.0, 0.5, 1.0][rng.below(3)];
        sim.set_faults(faults);
        let data = vec![2; LOST.len() * PAGE];
        file.write_all_from(&data, (LOST.start * PAGE) as u64).unwrap();
        sim.set_faults(Faults::default());
        let acts = acts(&mut rng);
        let said = at_once(&file, &acts);
        let after = sim.crash(|_, _| false).contents("file").unwrap_or_default();
        let is_lost = after[LOST.start * PAGE..] != data;
        lost += usize::from(is_lost);
        for (act, fine) in acts.iter().zip(&said) {
            assert!(!act.syncs() || !fine || !is_lost, "round {round}: {act:?} of {acts:?} is fine, and data is lost");
        }
        assert!(
            is_lost || faults.writeback_error > 0.0 || said.iter().all(|fine| *fine),
            "round {round}: {acts:?}: {said:?}"
        );
    }
    assert!(lost > rounds(), "{lost} rounds lost data");
}
