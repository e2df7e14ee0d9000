//! Isolation, order and progress where files are in trouble: each promise, for each trouble, on the
//! default instance and on a strict one, buffered and direct, for reads and writes.
//!
//! Each cell of that table has a process of its own: all files of a device share its evidence, and a
//! call that sleeps on the thread of a task must end no other test.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::fuse::Stalling;
use crate::common::mounts::{Frozen, Kind, LoopDevice, Mount, or_skip};
use crate::common::{Watchdog, assert_settled, child, eventually, poll_once};
use crate::isolation::{Hung, other_file, works};
use futures::future::maybe_done;
use nowait::{Buf, File, Nowait, OpenOptions};

const PAGE: usize = 4096;
/// More than a queue, a device or a pool holds.
const MANY: u64 = 300;
/// Behind what is written, and what the kernel may have read when a device was made of a file.
const READS_AT: u64 = 512 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// A file server (FUSE) does not answer.
    HungServer,
    /// A file server takes 50 ms for each request.
    SlowServer,
    /// A block device does not answer.
    HungDevice,
    /// A block device takes 2 ms for each request, and has more of them than it holds.
    BusyDevice,
    /// A file system accepts no change.
    FrozenExt4,
    FrozenXfs,
}

/// State of the file's evidence when the trouble begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It is new.
    Nothing,
    /// Reads and writes of it have returned soon.
    Good,
}

#[derive(Clone, Copy, Debug)]
struct Variant {
    strict: bool,
    direct: bool,
    known: Known,
}

const VARIANTS: [Variant; 8] = [
    Variant { strict: false, direct: false, known: Known::Nothing },
    Variant { strict: false, direct: true, known: Known::Nothing },
    Variant { strict: true, direct: false, known: Known::Nothing },
    Variant { strict: true, direct: true, known: Known::Nothing },
    Variant { strict: false, direct: false, known: Known::Good },
    Variant { strict: false, direct: true, known: Known::Good },
    Variant { strict: true, direct: false, known: Known::Good },
    Variant { strict: true, direct: true, known: Known::Good },
];

type Promise = fn(&Cell);

const PROMISES: [(&str, Promise); 3] =
    [("others go on", others_go_on), ("order and settled", order_is_kept), ("own queue", own_queue_goes_on)];

/// An instance, with a file that gets into trouble.
struct Cell {
    nowait: Nowait,
    file: File,
    trouble: Trouble,
    variant: Variant,
    state: std::cell::RefCell<State>,
    other: PathBuf,
    _dir: tempfile::TempDir,
}

/// Source of the trouble. The fields are dropped in order.
struct State {
    frozen: Option<Frozen>,
    device: Option<LoopDevice>,
    mount: Option<Mount>,
    server: Option<Stalling>,
}

impl Trouble {
    /// A default instance makes plain calls of a file whose calls have returned soon. The first one
    /// in such a trouble holds its thread.
    fn stops_plain_calls(self) -> bool {
        !matches!(self, Trouble::SlowServer | Trouble::BusyDevice)
    }

    fn make(self) -> Option<(State, PathBuf)> {
        let mut state = State { frozen: None, device: None, mount: None, server: None };
        let path = match self {
            Trouble::FrozenExt4 | Trouble::FrozenXfs => {
                let kind = if self == Trouble::FrozenExt4 { Kind::Ext4 } else { Kind::Xfs };
                let mount = Mount::or_skip(kind)?;
                let path = mount.path().join("file");
                std::fs::write(&path, vec![1; 4 << 20]).unwrap();
                std::fs::File::open(&path).unwrap().sync_all().unwrap();
                state.mount = Some(mount);
                path
            }
            _ => {
                let delay_ms = match self {
                    Trouble::SlowServer => 50,
                    Trouble::BusyDevice => 2,
                    _ => 0,
                };
                let server = Stalling::or_skip(Duration::from_millis(delay_ms))?;
                let mut path = server.file();
                if matches!(self, Trouble::HungDevice | Trouble::BusyDevice) {
                    let device = or_skip("a loop device", LoopDevice::over(&path, 512, None))?;
                    path = device.path().to_path_buf();
                    state.device = Some(device);
                }
                state.server = Some(server);
                path
            }
        };
        Some((state, path))
    }
}

impl Cell {
    fn new(trouble: Trouble, variant: Variant) -> Option<Cell> {
        let (state, path) = trouble.make()?;
        let nowait = Nowait::builder().strict(variant.strict).build().unwrap();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).direct(variant.direct).open_in(&nowait, path).wait().unwrap();
        if variant.known == Known::Good {
            for _ in 0..if trouble == Trouble::SlowServer { 2 } else { 20 } {
                drop(futures::executor::block_on(file.write_all_at(vec![1; PAGE], 0)).unwrap());
                drop(futures::executor::block_on(file.read_range(0, PAGE)).unwrap());
            }
        }
        let (dir, other) = other_file();
        Some(Cell { nowait, file, trouble, variant, state: state.into(), other, _dir: dir })
    }

    fn begin_trouble(&self) {
        let mut state = self.state.borrow_mut();
        match self.trouble {
            Trouble::HungServer | Trouble::HungDevice => state.server.as_mut().unwrap().hang(),
            Trouble::SlowServer | Trouble::BusyDevice => {}
            Trouble::FrozenExt4 | Trouble::FrozenXfs => {
                state.frozen = Some(Frozen::new(state.mount.as_ref().unwrap()));
            }
        }
    }

    fn end_trouble(&self) {
        let mut state = self.state.borrow_mut();
        match self.trouble {
            Trouble::HungServer | Trouble::HungDevice => state.server.as_mut().unwrap().go_on(),
            Trouble::SlowServer | Trouble::BusyDevice => {}
            Trouble::FrozenExt4 | Trouble::FrozenXfs => drop(state.frozen.take()),
        }
    }

    /// Writes never end while there is trouble.
    fn stops_writes(&self) -> bool {
        // A device's buffered writes end in the page cache.
        match self.trouble {
            Trouble::SlowServer | Trouble::BusyDevice => false,
            Trouble::HungDevice => self.variant.direct,
            _ => true,
        }
    }

    /// A file system that is frozen can be read.
    fn reads_at(&self) -> u64 {
        if self.state.borrow().mount.is_some() { 1 << 20 } else { READS_AT }
    }

    /// Operations of the file, polled once: none sleeps on the thread that polls it.
    fn begin_many(&self) -> Vec<Hung<'static>> {
        // A slow server's requests have to end.
        let (count, reads_at) = (if self.trouble == Trouble::SlowServer { 5 } else { MANY }, self.reads_at());
        let step = if self.state.borrow().mount.is_some() { PAGE as u64 } else { 1 << 20 };
        let mut begun: Vec<Hung<'static>> = Vec::new();
        for i in 0..count {
            let file = self.file.clone();
            begun.push(Box::pin(async move { drop(file.read_range(reads_at + i * step, PAGE).await.unwrap()) }));
            let file = self.file.clone();
            let offset = i * PAGE as u64;
            begun.push(Box::pin(async move { drop(file.write_all_at(Buf::zeroed(PAGE), offset).await.unwrap()) }));
        }
        begun.retain_mut(|operation| poll_once(operation.as_mut()).is_pending());
        begun
    }
}

fn others_go_on(cell: &Cell) {
    cell.begin_trouble();
    let begun = cell.begin_many();
    works(&cell.nowait, &cell.other);
    let own = nowait::block_on(async { cell.begin_many() });
    works(&cell.nowait, &cell.other);
    cell.end_trouble();
    futures::executor::block_on(futures::future::join_all(begun.into_iter().chain(own)));
}

fn order_is_kept(cell: &Cell) {
    cell.begin_trouble();
    let write = |value: u8| -> Hung<'static> {
        let file = cell.file.clone();
        let mut page = Buf::zeroed(PAGE);
        page.fill(value);
        Box::pin(async move { drop(file.write_all_at(page, 0).await.unwrap()) })
    };
    let mut writes: Vec<_> = (2..10).map(|value| Box::pin(maybe_done(write(value)))).collect();
    writes.iter_mut().for_each(|write| assert!(poll_once(write.as_mut()).is_pending() || !cell.stops_writes()));
    let mut settled = std::pin::pin!(cell.file.settled());
    let is_settled = poll_once(settled.as_mut()).is_ready();
    assert!(!(cell.stops_writes() && is_settled), "writes are under way");
    // Given up, and yet before what follows.
    let last = writes.pop().unwrap();
    writes.truncate(3);
    cell.end_trouble();
    futures::executor::block_on(futures::future::join(last, futures::future::join_all(writes)));
    if !is_settled {
        futures::executor::block_on(settled);
    }
    // (What a server of ours is written, it forgets.)
    if cell.state.borrow().mount.is_some() {
        assert_eq!(cell.file.read_range(0, 1).wait().unwrap()[..], [9], "the last of all");
    }
}

/// What a thread has in its own queue for a healthy file ends while its other operations are in
/// trouble.
fn own_queue_goes_on(cell: &Cell) {
    cell.begin_trouble();
    let mut options = OpenOptions::new();
    let other = options.read(true).write(true).direct(true).open_in(&cell.nowait, &cell.other).wait().unwrap();
    let begun = nowait::block_on(async {
        let begun = cell.begin_many();
        for i in 0..40 {
            drop(other.read_range(i * PAGE as u64, PAGE).await.unwrap());
            drop(other.write_all_at(Buf::zeroed(PAGE), i * PAGE as u64).await.unwrap());
        }
        other.sync_data().await.unwrap();
        begun
    });
    cell.end_trouble();
    futures::executor::block_on(futures::future::join_all(begun));
}

/// Runs each promise in each variant, and says which cells are broken.
fn keeps_its_promises(trouble: Trouble) {
    let mut broken = Vec::new();
    for (promise, _) in PROMISES {
        for (number, variant) in VARIANTS.iter().enumerate() {
            if trouble.stops_plain_calls() && variant.known == Known::Good && !variant.strict {
                continue;
            }
            let role = format!("{trouble:?}/{promise}/{number}");
            let played = std::panic::catch_unwind(|| child::play(&role));
            if let Err(panic) = played {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                broken.push(format!("{promise}, {variant:?}: {text}"));
            }
        }
    }
    assert!(broken.is_empty(), "{trouble:?}: {} cells are broken:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn a_server_that_hangs() {
    keeps_its_promises(Trouble::HungServer);
}

#[test]
fn a_server_that_is_slow() {
    keeps_its_promises(Trouble::SlowServer);
}

#[test]
fn a_device_that_hangs() {
    keeps_its_promises(Trouble::HungDevice);
}

#[test]
fn a_device_that_is_busy() {
    keeps_its_promises(Trouble::BusyDevice);
}

#[test]
fn ext4_that_is_frozen() {
    keeps_its_promises(Trouble::FrozenExt4);
}

#[test]
fn xfs_that_is_frozen() {
    keeps_its_promises(Trouble::FrozenXfs);
}

#[test]
fn child() {
    use Trouble::{BusyDevice, FrozenExt4, FrozenXfs, HungDevice, HungServer, SlowServer};
    let Some(role) = child::role() else { return };
    let [trouble, promise, variant]: [&str; 3] = role.split('/').collect::<Vec<_>>().try_into().unwrap();
    let all = [HungServer, SlowServer, HungDevice, BusyDevice, FrozenExt4, FrozenXfs];
    let trouble = all.into_iter().find(|one| format!("{one:?}") == trouble).unwrap();
    let (_, keeps) = PROMISES.into_iter().find(|(name, _)| *name == promise).unwrap();
    let variant = VARIANTS[variant.parse::<usize>().unwrap()];
    // After what is frozen has thawed by itself: a process that waits for that cannot end.
    let _watchdog = Watchdog::new(format!("{role}, {variant:?}"), 40);
    let Some(cell) = Cell::new(trouble, variant) else { return };
    keeps(&cell);
    assert!(eventually(|| cell.nowait.stats().started == cell.nowait.stats().ended()));
    assert_settled(&cell.nowait);
}
