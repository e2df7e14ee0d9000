//! Power that fails: every write and flush of a disk is recorded, with the events of the writers in
//! between. A cut of power leaves all writes before the last flush, and any sectors of later ones.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use nowait_log::{Log, Options, Scan};

use crate::common::mounts::{self, Mount};
use crate::common::rng::Rng;
use crate::model::{Found, Model};
use crate::writer;

const DISK_BYTES: usize = 48 << 20;
/// The largest unit that a disk writes as a whole.
const SECTOR: usize = 512;
/// Cuts of one recording.
const CUTS: u32 = 12;

enum Step {
    Write { at: usize, bytes: Vec<u8> },
    Flush,
    Event(Vec<u8>),
}

struct Disk {
    image: Vec<u8>,
    steps: Vec<Step>,
    event_bytes: u64,
}

/// A file system of two files: a disk, and the events.
#[derive(Clone)]
struct Recorder(Arc<Mutex<Disk>>);

const DISK: (&str, INodeNo) = ("disk", INodeNo(2));
const EVENTS: (&str, INodeNo) = ("events", INodeNo(3));
const KEPT: Duration = Duration::from_secs(1);

impl Recorder {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, node: INodeNo) -> Result<FileAttr, Errno> {
        let (size, kind) = match node {
            INodeNo::ROOT => (0, FileType::Directory),
            node if node == DISK.1 => (DISK_BYTES as u64, FileType::RegularFile),
            node if node == EVENTS.1 => (self.disk().event_bytes, FileType::RegularFile),
            _ => return Err(Errno::ENOENT),
        };
        Ok(FileAttr {
            ino: node,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: if kind == FileType::Directory { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Recorder {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = [DISK, EVENTS].into_iter().find(|(known, _)| name == *known).map(|(_, node)| node);
        match node.ok_or(Errno::ENOENT).and_then(|node| self.attributes(node)) {
            Ok(attributes) => reply.entry(&KEPT, &attributes, fuser::Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(node) {
            Ok(attributes) => reply.attr(&Duration::ZERO, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = if node == EVENTS.1 { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let disk = self.disk();
        let image: &[u8] = if node == DISK.1 { &disk.image } else { &[] };
        let from = (offset as usize).min(image.len());
        reply.data(&image[from..(from + size as usize).min(image.len())]);
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (mut disk, at) = (self.disk(), offset as usize);
        if node == EVENTS.1 {
            disk.event_bytes += data.len() as u64;
            disk.steps.push(Step::Event(data.to_vec()));
        } else {
            disk.image[at..at + data.len()].copy_from_slice(data);
            disk.steps.push(Step::Write { at, bytes: data.to_vec() });
        }
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if node == DISK.1 {
            self.disk().steps.push(Step::Flush);
        }
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

pub(crate) fn cuts() {
    let seed = nowait_soak::seed();
    eprintln!("NOWAIT_TEST_SEED={seed}");
    let until = Instant::now() + Duration::from_secs(nowait_soak::seconds());
    let (mut rng, mut cuts) = (Rng::new(seed), 0);
    while Instant::now() < until {
        let Some((base, steps)) = record(&mut rng) else { return };
        for _ in 0..CUTS {
            cut(&mut rng, &base, &steps);
            cuts += 1;
        }
    }
    eprintln!("{cuts} cuts of power");
}

/// Runs writers on a recorded disk; returns its contents when they began, and what came then.
fn record(rng: &mut Rng) -> Option<(Vec<u8>, Vec<Step>)> {
    let (_dir, point) = mounts::or_skip("a recorded disk", mounts::folder_and_point())?;
    let recorder =
        Recorder(Arc::new(Mutex::new(Disk { image: vec![0; DISK_BYTES], steps: Vec::new(), event_bytes: 0 })));
    let served = fuser::spawn_mount(recorder.clone(), &point, &fuser::Config::default());
    let served = mounts::or_skip("a recorded disk (FUSE)", served.map_err(|error| error.to_string()))?;
    let mount = Mount::ext4_in(&point.join(DISK.0), true).unwrap();
    rustix::fs::sync();
    let base = {
        let mut disk = recorder.disk();
        disk.steps.clear();
        disk.image.clone()
    };
    for _ in 0..1 + rng.below(3) {
        let mut child = writer::start(&mount.path().join("log"), &point.join(EVENTS.0), rng.next());
        std::thread::sleep(Duration::from_millis(800 + rng.below(1500) as u64));
        // It may have ended already.
        let _ = child.kill();
        let status = child.wait().unwrap();
        assert!(status.code().is_none_or(|code| code == 0), "the writer ended with {status}");
    }
    let steps = std::mem::take(&mut recorder.disk().steps);
    drop(mount);
    served.umount_and_join().unwrap();
    Some((base, steps))
}

/// Cuts the power at a place of the recording, and looks at the log.
fn cut(rng: &mut Rng, base: &[u8], steps: &[Step]) {
    let end = rng.below(steps.len() + 1);
    let flushed = steps[..end].iter().rposition(|step| matches!(step, Step::Flush)).unwrap_or(0);
    let percent = [0, 50, 90, 100][rng.below(4)];
    let (mut image, mut events) = (base.to_vec(), Vec::new());
    for (index, step) in steps[..end].iter().enumerate() {
        match step {
            Step::Flush => {}
            Step::Event(bytes) => events.extend_from_slice(bytes),
            Step::Write { at, bytes } => {
                for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
                    if index < flushed || rng.below(100) < percent {
                        let at = at + sector * SECTOR;
                        image[at..at + bytes.len()].copy_from_slice(bytes);
                    }
                }
            }
        }
    }
    let mut model = Model::default();
    for line in String::from_utf8(events).unwrap().lines() {
        model.event(line).unwrap();
    }
    let dir = mounts::temp_dir();
    let path = dir.path().join("image");
    std::fs::write(&path, &image).unwrap();
    let mount = Mount::of_ext4(&path).unwrap();
    let log = mount.path().join("log");
    if let Err(fault) = look(&log, &mut model, rng) {
        // For whoever looks for the cause.
        let kept = dir.keep();
        panic!("cut at step {end} of {}, {percent} % of unflushed sectors: {fault}; {}", steps.len(), kept.display());
    }
}

fn look(log: &Path, model: &mut Model, rng: &mut Rng) -> Result<(), String> {
    let found = Found::read(log)?;
    model.check(&found)?;
    if found.last() == 0 {
        return Ok(());
    }
    // The log goes on where it ended.
    let scan = if rng.below(2) == 0 { Scan::Tail } else { Scan::All };
    let text = |error: nowait::Error| format!("{scan:?}: {error}");
    let (log_open, recovery) = Log::open(log, &Options::new().scan(scan)).wait().map_err(text)?;
    let lsn = log_open.append(&crate::model::record(1, 100)).wait().and_then(|ticket| ticket.wait()).map_err(text)?;
    log_open.close().wait().map_err(text)?;
    if (recovery.last_lsn, lsn) != (found.last(), found.last() + 1) {
        return Err(format!("open found {}, read {}, and the next was {lsn}", recovery.last_lsn, found.last()));
    }
    model.check(&Found::read(log)?)
}
