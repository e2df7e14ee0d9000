//! The state of a simulated disk, and one call on it, with the faults that it may meet.

use std::collections::HashSet;
use std::sync::Arc;

use super::change::Node;
use super::disk::{FILE_MAX, Store, UnderWay, plain};
use super::image::Image;
use super::{Faults, Sim};
use crate::direct::Directness;
use crate::op::{Backlog, Done, Handle, NextStep, Outcome, Owned, Request, SHARE, Slot, Transfer, step};
use crate::sys::{Advice, Allocate, Errno, OFlags, WaitMode, WriteFlags};

pub(super) struct World {
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) store: Store,
    /// And the numbers under which they began.
    pub(super) in_flight: Vec<(u64, Arc<Slot>)>,
    pub(super) line: Backlog,
    /// Files whose operations never end.
    pub(super) hung: HashSet<usize>,
    pub(super) depth: usize,
    pub(super) settling: usize,
    pub(super) engines: usize,
    pub(super) watcher: Option<Observer>,
}

pub(super) type Observer = Arc<dyn Fn(&Sim) + Send + Sync>;

/// SplitMix64: the whole state is one word, which is the seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        // Drawn also when the probability is zero, so that one fault's setting does not shift the
        // others.
        self.uniform() < probability
    }
}

/// The file of a handle.
fn file_of(handle: Option<&Handle>) -> Result<usize, Errno> {
    match handle {
        Some(Handle::Simulated { file, .. }) => Ok(*file),
        _ => Err(Errno::BADF),
    }
}

/// Whether a write goes to the end of the file, whatever its offset.
fn appends(handle: Option<&Handle>, flags: WriteFlags) -> bool {
    flags.contains(WriteFlags::APPEND)
        || matches!(handle, Some(Handle::Simulated { flags, .. }) if flags.contains(OFlags::APPEND))
}

/// The disk's copy of a write; none for other requests.
pub(super) fn under_way(handle: Option<&Handle>, request: &Request) -> Option<UnderWay> {
    let Request::Write(transfer, flags) = request else { return None };
    let file = file_of(handle).ok()?;
    let start = usize::try_from(transfer.position()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; transfer.left()];
    transfer.copy_to(&mut bytes);
    Some(UnderWay { file, start: (!appends(handle, *flags)).then_some(start), bytes: Arc::new(bytes) })
}

impl World {
    fn contents(&self, file: usize) -> Result<&Image, Errno> {
        self.store.contents(file).ok_or(Errno::BADF)
    }

    /// Whether an operation never ends.
    pub(super) fn hangs(&self, handle: Option<&Handle>) -> bool {
        !self.hung.is_empty() && file_of(handle).is_ok_and(|file| self.hung.contains(&file))
    }

    /// Places in `in_flight` of what may end.
    pub(super) fn may_end(&self) -> Vec<usize> {
        let ends = |slot: &Arc<Slot>| slot.with(|_, owner| !self.hangs(owner.handle())) != Some(false);
        self.in_flight.iter().enumerate().filter(|(_, (_, slot))| ends(slot)).map(|(place, _)| place).collect()
    }

    /// Whether the disk takes an operation: always, of a file with few under way, whatever others
    /// have.
    pub(super) fn has_room_for(&self, slot: &Slot) -> bool {
        self.in_flight.len() < self.depth || slot.is_below(SHARE) && !self.hung.is_empty()
    }

    pub(super) fn admit(&mut self, slot: Arc<Slot>) {
        let write = slot.begin(|request, owner| under_way(owner.handle(), request));
        self.in_flight.push((self.store.begin(write), slot));
    }

    /// Makes one call that may wait, of the operation that began under `number`. None if the rest
    /// needs another call.
    pub(super) fn call(&mut self, handle: Option<&Handle>, request: &mut Request, number: u64) -> Option<Outcome> {
        let (transfer, flags) = match request {
            Request::Read(transfer) => (transfer, None),
            Request::Write(transfer, flags) => (transfer, Some(*flags)),
            request => return Some(self.other(handle, request, number)),
        };
        let result = self.transfer(handle, transfer, flags, WaitMode::Allowed);
        match step(transfer, result) {
            NextStep::Again => None,
            NextStep::Finish(end) => Some(end.map(|()| Done::Nothing)),
        }
    }

    /// One call on one transfer, with what may go wrong. Writes have flags.
    pub(super) fn transfer(
        &mut self,
        handle: Option<&Handle>,
        transfer: &mut Transfer,
        flags: Option<WriteFlags>,
        wait: WaitMode,
    ) -> Result<usize, Errno> {
        let file = file_of(handle)?;
        let length = self.contents(file)?.len();
        if transfer.left() == 0 {
            return Ok(0);
        }
        let faults = self.faults;
        let position = usize::try_from(transfer.position()).unwrap_or(usize::MAX);
        let start = match flags {
            Some(flags) if appends(handle, flags) => length,
            Some(_) => position,
            None => position.min(length),
        };
        let mut n = if flags.is_some() { transfer.left() } else { (length - start).min(transfer.left()) };
        let extends = flags.is_some() && start.saturating_add(n) > length;
        let (read_error, write_error) =
            if flags.is_some() { (0.0, faults.write_error) } else { (faults.read_error, 0.0) };
        let full = self.random.chance(faults.no_space) && extends;
        let mut fails = false;
        let short = match wait {
            WaitMode::Never if faults.nowait_refused => return Err(Errno::OPNOTSUPP),
            _ if full => return Err(Errno::NOSPC),
            WaitMode::Never if self.random.chance(faults.not_now) => return Err(Errno::AGAIN),
            WaitMode::Never if self.random.chance(faults.empty_now) => return Ok(0),
            WaitMode::Never => self.random.chance(faults.short_now),
            WaitMode::Allowed if self.random.chance(faults.io_error) => return Err(Errno::IO),
            WaitMode::Allowed if self.random.chance(read_error) => return Err(Errno::IO),
            WaitMode::Allowed if self.random.chance(faults.interrupted) => return Err(Errno::INTR),
            WaitMode::Allowed => {
                fails = self.random.chance(write_error);
                self.random.chance(faults.short)
            }
        };
        if short && n > 1 {
            n = 1 + (self.random.next() % (n as u64 - 1)) as usize;
        }
        let Some(flags) = flags else {
            let readable = self.store.readable(file, start..start + n);
            if readable == 0 && n > 0 {
                return Err(Errno::IO);
            }
            return Ok(transfer.fill(&self.contents(file)?.get(start..start + readable)));
        };
        if start.checked_add(n).is_none_or(|end| end > FILE_MAX) {
            return Err(Errno::FBIG);
        }
        if start + n > length {
            let room = usize::try_from(self.store.room()).unwrap_or(usize::MAX);
            n = n.min(length.saturating_add(room).saturating_sub(start));
            if n == 0 {
                return Err(Errno::NOSPC);
            }
        }
        let mut bytes = vec![0; n];
        transfer.copy_to(&mut bytes);
        if fails {
            let World { store, random, .. } = self;
            let probability = random.uniform();
            store.fail_write(file, start, &bytes, || random.chance(probability));
            return Err(Errno::IO);
        }
        let durable = flags.contains(WriteFlags::DURABLE);
        self.store.write(file, start, bytes, durable);
        if durable {
            self.report(file)?;
        } else if self.random.chance(faults.writeback_error) {
            let World { store, random, .. } = self;
            let probability = random.uniform();
            store.fail_write_back(file, || random.chance(probability));
        }
        Ok(n)
    }

    /// Tells of a failed write-back, once.
    fn report(&mut self, file: usize) -> Result<(), Errno> {
        if self.store.take_report(file) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Everything but transfers is done in one call; it began under `number`.
    pub(super) fn other(&mut self, handle: Option<&Handle>, request: &Request, number: u64) -> Outcome {
        match request {
            Request::Open { path, flags, direct, .. } => {
                let path = plain(&path.path);
                let file = match self.store.node(&path) {
                    Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => return Err(Errno::EXIST),
                    Some(Node::Directory) => return Err(Errno::ISDIR),
                    Some(Node::File(file)) => file,
                    None if !flags.contains(OFlags::CREATE) => return Err(Errno::NOENT),
                    None if self.random.chance(self.faults.no_space) => return Err(Errno::NOSPC),
                    None => self.store.create(&path, &[], false),
                };
                if flags.contains(OFlags::TRUNC) {
                    self.store.set_len(file, 0);
                }
                let refused = *direct && self.faults.direct_refused;
                let directness = if refused { Directness::Refused } else { Directness::NotAsked };
                Ok(Owned::Opened(Handle::Simulated { file, flags: *flags }, directness).into())
            }
            Request::Size => self.contents(file_of(handle)?).map(|contents| Done::Size(contents.len() as u64)),
            Request::SetLen(length) => {
                let length = usize::try_from(*length).ok().filter(|length| *length <= FILE_MAX).ok_or(Errno::FBIG)?;
                let file = file_of(handle)?;
                self.make_room(file, length)?;
                self.store.set_len(file, length);
                Ok(Done::Nothing)
            }
            Request::Sync { .. } => {
                let file = file_of(handle)?;
                if self.random.chance(self.faults.sync_error) {
                    let World { store, random, .. } = self;
                    let probability = random.uniform();
                    store.fail_sync(file, number, || random.chance(probability));
                    return Err(Errno::IO);
                }
                self.store.sync(file, number);
                self.report(file)?;
                Ok(Done::Nothing)
            }
            // Names are found by their paths alone: nothing here is moved while it is held.
            Request::OpenDir(path) => match self.store.node(&plain(path)).ok_or(Errno::NOENT)? {
                Node::File(_) => Err(Errno::NOTDIR),
                Node::Directory => {
                    let handle = Handle::Simulated { file: usize::MAX, flags: OFlags::empty() };
                    Ok(Owned::Opened(handle, Directness::NotAsked).into())
                }
            },
            Request::SyncDir(path) => {
                let path = plain(&path.path);
                match self.store.node(&path) {
                    None => Err(Errno::NOENT),
                    Some(Node::File(_)) => Err(Errno::NOTDIR),
                    // The changes that it should have made durable may still be lost.
                    Some(Node::Directory) if self.random.chance(self.faults.sync_error) => Err(Errno::IO),
                    Some(Node::Directory) => {
                        self.store.sync_directory(&path, number);
                        Ok(Done::Nothing)
                    }
                }
            }
            // A simulated file can neither be mapped, nor found by a call of std.
            Request::Fault { .. } | Request::Call(_) | Request::ReserveAhead { .. } | Request::GiveBack => {
                Err(Errno::OPNOTSUPP)
            }
            Request::CreateDir(path) => {
                let path = plain(path);
                if self.store.node(&path).is_some() {
                    return Err(Errno::EXIST);
                }
                self.store.create_directory(&path);
                Ok(Done::Nothing)
            }
            Request::List(path) => {
                let path = plain(&path.path);
                match self.store.node(&path).ok_or(Errno::NOENT)? {
                    Node::File(_) => Err(Errno::NOTDIR),
                    Node::Directory => Ok(Owned::Names(self.store.list(&path)).into()),
                }
            }
            Request::Rename { from, to, replace } => {
                let (from, to) = (plain(&from.path), plain(&to.path));
                match (self.store.node(&from).ok_or(Errno::NOENT)?, self.store.node(&to)) {
                    (_, Some(_)) if !replace => Err(Errno::EXIST),
                    // Not simulated.
                    (Node::Directory, _) => Err(Errno::OPNOTSUPP),
                    (_, Some(Node::Directory)) => Err(Errno::ISDIR),
                    (Node::File(file), _) => {
                        self.store.rename(&from, &to, file);
                        Ok(Done::Nothing)
                    }
                }
            }
            Request::Remove(path) => {
                let path = plain(&path.path);
                match self.store.node(&path).ok_or(Errno::NOENT)? {
                    Node::Directory => Err(Errno::ISDIR),
                    Node::File(file) => {
                        self.store.remove(&path, file);
                        Ok(Done::Nothing)
                    }
                }
            }
            Request::Allocate { .. } if self.faults.allocate_refused => Err(Errno::OPNOTSUPP),
            Request::Allocate { how, offset, length } => {
                let end = offset.checked_add(*length).and_then(|end| usize::try_from(end).ok());
                let end = end.filter(|end| *end <= FILE_MAX).ok_or(Errno::FBIG)?;
                let start = *offset as usize;
                if start == end {
                    return Err(Errno::INVAL);
                }
                if self.random.chance(self.faults.no_space) {
                    return Err(Errno::NOSPC);
                }
                let file = file_of(handle)?;
                if matches!(how, Allocate::Reserve | Allocate::Zero) {
                    self.make_room(file, end)?;
                    self.store.extend(file, end, false);
                }
                if matches!(how, Allocate::PunchHole | Allocate::Zero) {
                    let end = end.min(self.contents(file)?.len());
                    self.store.write(file, start, vec![0; end.saturating_sub(start)], false);
                }
                Ok(Done::Nothing)
            }
            Request::Close(_) if self.random.chance(self.faults.close_error) => Err(Errno::IO),
            Request::SyncRange { .. } => self.report(file_of(handle)?).map(|()| Done::Nothing),
            Request::Advise { advice: Advice::DontNeed, offset: 0, length: 0 } => {
                self.store.drop_cache(file_of(handle)?);
                Ok(Done::Nothing)
            }
            Request::Advise { .. } | Request::Close(_) | Request::Read(_) | Request::Write(..) => Ok(Done::Nothing),
        }
    }

    /// Whether the disk takes a file of this length.
    fn make_room(&self, file: usize, length: usize) -> Result<(), Errno> {
        let more = length.saturating_sub(self.contents(file)?.len());
        if more as u64 > self.store.room() { Err(Errno::NOSPC) } else { Ok(()) }
    }
}
