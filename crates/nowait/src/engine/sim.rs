//! A simulator: files in memory, and faults by seed. For tests of what is built on this crate, this crate's own included.
//!
//! It answers attempts with "not now", short, or empty results, completes what was submitted in a seeded order, cuts
//! transfers short and fails them, all with chances that can be set. The same seed and the same sequence of operations give the
//! same faults. Completions come from a thread of the simulator's, or, with [`Sim::manual`], when [`Sim::step`] is called.

use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Engine;
use crate::buf::lock;
use crate::direct::Directness;
use crate::op::{Backlog, Done, Handle, Outcome, Request, Slot, Step, Work, step};
use crate::stats::Count;
use crate::sys::{Wait, WriteFlags};

/// Chances of faults, each from 0 to 1, for each call.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// An attempt finds nothing cached.
    pub not_now: f64,
    /// An attempt answers with no bytes although there are some, as some kernels did (5.9, 5.10).
    pub empty_now: f64,
    /// An attempt is served in part.
    pub short_now: f64,
    /// A call that may wait is served in part.
    pub short: f64,
    /// A call that may wait is interrupted.
    pub interrupted: f64,
    /// A call that may wait fails with EIO.
    pub io_error: f64,
    /// A sync fails with EIO.
    pub sync_error: f64,
    /// Attempts are refused for good (EOPNOTSUPP), as on tmpfs, overlayfs and FUSE.
    pub nowait_refused: bool,
}

/// The largest file that a simulated disk takes.
const FILE_MAX: usize = 1 << 30;

/// A simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct Sim(Arc<Disk>);

struct Disk {
    world: Mutex<World>,
    work: Condvar,
    quiet: Condvar,
    manual: bool,
}

struct World {
    random: u64,
    faults: Faults,
    files: Vec<(PathBuf, Arc<Vec<u8>>)>,
    in_flight: Vec<Arc<Slot>>,
    line: Backlog,
    depth: usize,
    settling: usize,
    engines: usize,
}

impl Sim {
    /// A disk whose thread completes operations by itself, in an order given by `seed`.
    pub fn new(seed: u64) -> Sim {
        Sim::with(seed, false)
    }

    /// A disk on which operations complete only in [`Sim::step`].
    pub fn manual(seed: u64) -> Sim {
        Sim::with(seed, true)
    }

    fn with(seed: u64, manual: bool) -> Sim {
        let world = World {
            random: seed,
            faults: Faults::default(),
            files: Vec::new(),
            in_flight: Vec::new(),
            line: Backlog::default(),
            depth: 64,
            settling: 0,
            engines: 0,
        };
        Sim(Arc::new(Disk { world: Mutex::new(world), work: Condvar::new(), quiet: Condvar::new(), manual }))
    }

    /// Sets the chances of faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.0.world).faults = faults;
    }

    /// Sets how many operations the disk takes at a time; more wait in line. Default: 64.
    pub fn set_depth(&self, depth: usize) {
        lock(&self.0.world).depth = depth.max(1);
    }

    /// Puts a file there, in place of one of the same name.
    pub fn create(&self, path: impl AsRef<FsPath>, contents: impl Into<Vec<u8>>) {
        let path = path.as_ref().to_path_buf();
        // In place of: a handle that is open keeps the old contents, as with rename(2).
        lock(&self.0.world).files.push((path, Arc::new(contents.into())));
    }

    /// Number of operations that are submitted and not complete.
    pub fn pending(&self) -> usize {
        let world = lock(&self.0.world);
        world.in_flight.len() + world.line.len() + world.settling
    }

    /// Gives one operation in flight one result. False when there is none.
    pub fn step(&self) -> bool {
        self.0.step()
    }

    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        if !self.0.manual {
            lock(&self.0.world).engines += 1;
            let disk = self.0.clone();
            let thread = std::thread::Builder::new().name("nowait-sim".into());
            // Without a thread operations still complete: by `step`, or in `drain`.
            let _ = thread.spawn(move || disk.serve());
        }
        Arc::new(SimEngine(self.0.clone()))
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("pending", &self.pending()).field("manual", &self.0.manual).finish()
    }
}

impl World {
    /// SplitMix64: the whole state is one word, which is the seed.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn chance(&mut self, probability: f64) -> bool {
        // Drawn also when the probability is zero, so that one fault's setting does not shift the others.
        ((self.next() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }

    fn contents(&self, handle: Option<&Handle>) -> Result<Arc<Vec<u8>>, Errno> {
        match handle {
            Some(Handle::Simulated(index)) => self.files.get(*index).map(|file| file.1.clone()).ok_or(Errno::BADF),
            _ => Err(Errno::BADF),
        }
    }

    /// One call on one transfer, with what may go wrong.
    fn transfer(&mut self, handle: Option<&Handle>, request: &mut Request, wait: Wait) -> Result<usize, Errno> {
        let contents = self.contents(handle)?;
        let faults = self.faults;
        let (transfer, flags) = match request {
            Request::Read(transfer) => (transfer, None),
            Request::Write(transfer, flags) => (transfer, Some(*flags)),
            _ => return Err(Errno::INVAL),
        };
        let position = usize::try_from(transfer.position()).unwrap_or(usize::MAX);
        let start = position.min(contents.len());
        let mut n = if flags.is_some() { transfer.left() } else { (contents.len() - start).min(transfer.left()) };
        let short = match wait {
            Wait::Never if faults.nowait_refused => return Err(Errno::OPNOTSUPP),
            Wait::Never if self.chance(faults.not_now) => return Err(Errno::AGAIN),
            Wait::Never if self.chance(faults.empty_now) => return Ok(0),
            Wait::Never => self.chance(faults.short_now),
            Wait::Allowed if self.chance(faults.io_error) => return Err(Errno::IO),
            Wait::Allowed if self.chance(faults.interrupted) => return Err(Errno::INTR),
            Wait::Allowed => self.chance(faults.short),
        };
        if short && n > 1 {
            n = 1 + (self.next() % (n as u64 - 1)) as usize;
        }
        let Some(flags) = flags else { return Ok(transfer.fill(&contents[start..start + n])) };
        drop(contents);
        let start = if flags.contains(WriteFlags::APPEND) { usize::MAX } else { position };
        let mut bytes = vec![0; n];
        transfer.copy_to(&mut bytes);
        self.change(handle, |contents| {
            let start = if start == usize::MAX { contents.len() } else { start };
            let end = start.checked_add(bytes.len()).filter(|end| *end <= FILE_MAX).ok_or(Errno::FBIG)?;
            contents.resize(contents.len().max(end), 0);
            contents[start..end].copy_from_slice(&bytes);
            Ok(bytes.len())
        })
    }

    fn change<T>(
        &mut self,
        handle: Option<&Handle>,
        change: impl FnOnce(&mut Vec<u8>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match handle {
            // Only copied while a read of it is under way.
            Some(Handle::Simulated(index)) => {
                change(Arc::make_mut(&mut self.files.get_mut(*index).ok_or(Errno::BADF)?.1))
            }
            _ => Err(Errno::BADF),
        }
    }

    /// Everything but transfers is done in one call.
    fn other(&mut self, handle: Option<&Handle>, request: &Request) -> Outcome {
        match request {
            Request::Open { path, flags, .. } => {
                let index = match self.files.iter().rposition(|(known, _)| known == path) {
                    Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => return Err(Errno::EXIST),
                    Some(index) => index,
                    None if flags.contains(OFlags::CREATE) => {
                        self.files.push((path.clone(), Arc::default()));
                        self.files.len() - 1
                    }
                    None => return Err(Errno::NOENT),
                };
                if flags.contains(OFlags::TRUNC) {
                    self.files[index].1 = Arc::default();
                }
                Ok(Done::Opened(Handle::Simulated(index), Directness::NotAsked))
            }
            Request::Size => self.contents(handle).map(|contents| Done::Size(contents.len() as u64)),
            Request::SetLen(length) => {
                let length = usize::try_from(*length).ok().filter(|length| *length <= FILE_MAX).ok_or(Errno::FBIG)?;
                self.change(handle, |contents| {
                    contents.resize(length, 0);
                    Ok(Done::Nothing)
                })
            }
            Request::Sync { .. } if self.chance(self.faults.sync_error) => Err(Errno::IO),
            Request::Rename { from, to, replace } => {
                let find = |files: &[(PathBuf, Arc<Vec<u8>>)], path| files.iter().rposition(|(known, _)| known == path);
                let index = find(&self.files, from).ok_or(Errno::NOENT)?;
                if !replace && find(&self.files, to).is_some() {
                    return Err(Errno::EXIST);
                }
                // Handles are places in the list, so that entries stay where they are.
                self.files.iter_mut().filter(|(known, _)| known == to).for_each(|(known, _)| *known = PathBuf::new());
                self.files[index].0 = to.clone();
                Ok(Done::Nothing)
            }
            Request::Remove(path) => {
                let index = self.files.iter().rposition(|(known, _)| known == path).ok_or(Errno::NOENT)?;
                self.files[index].0 = PathBuf::new();
                Ok(Done::Nothing)
            }
            Request::Allocate { .. } => Err(Errno::OPNOTSUPP),
            Request::Sync { .. }
            | Request::SyncRange { .. }
            | Request::SyncDir(_)
            | Request::Advise { .. }
            | Request::Close(_)
            | Request::Read(_)
            | Request::Write(..) => Ok(Done::Nothing),
        }
    }
}

impl Disk {
    fn step(&self) -> bool {
        let mut world = lock(&self.world);
        if world.in_flight.is_empty() {
            return false;
        }
        let chosen = (world.next() % world.in_flight.len() as u64) as usize;
        let slot = world.in_flight.swap_remove(chosen);
        world.settling += 1;
        // Not under the lock: one that was abandoned gives back a permit, which lets others in.
        drop(world);
        let work = slot.take_work();
        let mut world = lock(&self.world);
        let end = work.and_then(|mut work| {
            let Work { request, owner } = &mut work;
            let result = match request {
                Request::Read(_) | Request::Write(..) => Some(world.transfer(owner.handle(), request, Wait::Allowed)),
                _ => None,
            };
            let step = match (result, &mut *request) {
                (Some(result), Request::Read(transfer) | Request::Write(transfer, _)) => match step(transfer, result) {
                    Step::Again => None,
                    Step::Finish(end) => Some(end.map(|()| Done::Nothing)),
                },
                (_, Request::Sync { .. }) => Some(owner.synced(|| world.other(owner.handle(), request))),
                (_, request) => Some(world.other(owner.handle(), request)),
            };
            slot.put_back(work);
            if step.is_none() {
                world.in_flight.push(slot.clone());
            }
            step
        });
        while world.in_flight.len() < world.depth {
            let Some(next) = world.line.pop() else { break };
            world.in_flight.push(next);
        }
        drop(world);
        // A completion wakes whom it may, with nothing locked.
        if let Some(outcome) = end {
            slot.finish(outcome, Count::Ring);
        }
        drop(slot);
        let mut world = lock(&self.world);
        world.settling -= 1;
        if world.in_flight.is_empty() && world.settling == 0 {
            self.quiet.notify_all();
        }
        true
    }

    fn serve(&self) {
        loop {
            while self.step() {}
            let mut world = lock(&self.world);
            while world.in_flight.is_empty() {
                if world.engines == 0 {
                    return;
                }
                world = self.work.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }
}

struct SimEngine(Arc<Disk>);

impl Drop for SimEngine {
    fn drop(&mut self) {
        let mut world = lock(&self.0.world);
        world.engines = world.engines.saturating_sub(1);
        self.0.work.notify_all();
    }
}

impl Engine for SimEngine {
    fn try_now(&self, handle: &Handle, request: &mut Request, wait: Wait) -> Result<usize, Errno> {
        let n = lock(&self.0.world).transfer(Some(handle), request, wait)?;
        if let Request::Read(transfer) | Request::Write(transfer, _) = request {
            transfer.advance(n);
        }
        Ok(n)
    }

    fn run(&self, handle: Option<&Handle>, request: &mut Request) -> Outcome {
        loop {
            let result = match request {
                Request::Read(transfer) | Request::Write(transfer, _) if transfer.left() == 0 => {
                    return Ok(Done::Nothing);
                }
                Request::Read(_) | Request::Write(..) => lock(&self.0.world).transfer(handle, request, Wait::Allowed),
                _ => return lock(&self.0.world).other(handle, request),
            };
            if let Request::Read(transfer) | Request::Write(transfer, _) = request {
                if let Step::Finish(end) = step(transfer, result) {
                    return end.map(|()| Done::Nothing);
                }
            }
        }
    }

    fn submit(&self, slot: Arc<Slot>) {
        let mut world = lock(&self.0.world);
        if world.in_flight.len() < world.depth {
            world.in_flight.push(slot);
        } else {
            slot.count(Count::Queued);
            world.line.push(slot);
        }
        drop(world);
        self.0.work.notify_one();
    }

    fn drain(&self) {
        if self.0.manual {
            while self.0.step() {}
            return;
        }
        let mut world = lock(&self.0.world);
        while !world.in_flight.is_empty() || world.settling > 0 {
            world = self.0.quiet.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}
