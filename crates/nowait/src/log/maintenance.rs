//! What a log needs done that no commit should wait for: the next segment, segments that are not needed any more, records that
//! nobody waits for, and the stamp when it has become quiet.
//!
//! One thread for each log that is open for writing, asleep while the log is idle.

use std::any::Any;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::commit::{Core, Live, Shared};
use super::dir::Folder;
use rustix::io::Errno;

use crate::buf::lock;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::File;
use crate::sys;

/// How long a log is left alone before it is stamped, and a record that nobody waits for before it is written.
const TICK: Duration = Duration::from_millis(10);
/// After which what could not be done is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Between pieces of a segment that is prepared while there is room for long: commits have the disk meanwhile.
const PAUSE: Duration = Duration::from_millis(1);

/// What was done.
pub(super) enum Tended {
    Something,
    /// Nothing; there may be something to do later.
    Nothing(Later),
    /// The log is closing, and all is written.
    Closed,
}

pub(super) enum Later {
    /// After so long.
    In(Duration),
    /// When somebody says so.
    WhenTold,
}

/// The keeper's thread.
pub(super) fn run(shared: &Arc<Shared>) {
    // Only this thread sets it.
    let _ = shared.keeper.set(std::thread::current().id());
    loop {
        let later = match tend(shared) {
            Tended::Something => continue,
            Tended::Closed => return,
            Tended::Nothing(later) => later,
        };
        let mut core = shared.core();
        match later {
            // Somebody may have come since, or begun to close.
            Later::In(_) if core.appends_wait > 0 && shared.lacks_spare(&core) => {}
            Later::In(time) => {
                let time = if core.closing { TICK } else { time };
                drop(shared.work.wait_timeout(core, time));
            }
            // Looked at again: it may have changed since.
            Later::WhenTold if !core.closing && shared.is_idle(&core) && core.retired.is_empty() => {
                core.keeper_sleeps = true;
                drop(shared.work.wait(core));
            }
            Later::WhenTold => {}
        }
    }
}

/// Does one thing that there is to do.
pub(super) fn tend(shared: &Arc<Shared>) -> Tended {
    if shared.is_forked() {
        return Tended::Closed;
    }
    let mut core = shared.core();
    if core.has_old_flight(shared.clock.now(), TICK) {
        drop(core);
        shared.watch_all();
        core = shared.core();
    }
    if core.poison.is_some() {
        return if core.closing { Tended::Closed } else { Tended::Nothing(Later::In(RETRY)) };
    }
    if core.closing {
        let (pending, quiet) = (core.has_pending(), core.is_quiet());
        drop(core);
        if pending {
            shared.write_all_here();
        }
        return if quiet { Tended::Closed } else { Tended::Nothing(Later::In(TICK)) };
    }
    if shared.is_due(&core) && core.has_pending() {
        drop(core);
        if shared.write_all_here() {
            return Tended::Something;
        }
        // As many writes are on their way as may be.
        core = shared.core();
    }
    // Before the stamp, which may have no room without it.
    if shared.lacks_spare(&core) {
        drop(core);
        if make_spare(shared) {
            return Tended::Something;
        }
        core = shared.core();
    }
    if shared.is_due(&core) && core.is_quiet() && core.lacks_stamp(shared.durable()) {
        drop(core);
        if shared.stamp().is_ok() {
            shared.core().numbers.watermark_blocks += 1;
            return Tended::Something;
        }
        return Tended::Nothing(Later::In(RETRY));
    }
    if !core.retired.is_empty() {
        drop(core);
        return match remove_oldest(shared) {
            Ok(()) => Tended::Something,
            Err(_) => Tended::Nothing(Later::In(RETRY)),
        };
    }
    match shared.is_idle(&core) {
        true if core.no_spare.is_some() => Tended::Nothing(Later::In(RETRY)),
        true => Tended::Nothing(Later::WhenTold),
        false => Tended::Nothing(Later::In(TICK)),
    }
}

impl Shared {
    /// One for what comes next, and those of the reserve.
    pub(super) fn wants_spare(&self, core: &Core) -> bool {
        let usable = self.usable_end() - super::format::PAGE as u64;
        (core.spares.len() as u64) < 1 + self.limits.reserve_bytes.div_ceil(usable)
    }

    fn lacks_spare(&self, core: &Core) -> bool {
        self.wants_spare(core) && self.may_try_again(core)
    }

    /// Long enough after a segment could not be had.
    pub(super) fn may_try_again(&self, core: &Core) -> bool {
        core.no_spare_since.is_none_or(|since| self.clock.since(since) >= RETRY)
    }

    /// Long enough ago for what nobody waits for.
    fn is_due(&self, core: &Core) -> bool {
        self.clock.since(core.last_active) >= TICK
    }

    fn is_idle(&self, core: &Core) -> bool {
        core.is_quiet() && !core.lacks_stamp(self.durable()) && !self.lacks_spare(core)
    }
}

/// Removes the oldest of the segments that are not needed any more. The next is only touched when it is gone for good: one that is left
/// before a gap would look as if the gap were damage.
fn remove_oldest(shared: &Shared) -> Result<()> {
    let Some(names) = shared.names.lock() else { return Ok(()) };
    let oldest = shared.core().retired.first().copied();
    let removed = oldest.map_or(Ok(()), |number| remove(&shared.folder, number));
    if removed.is_ok() {
        shared.core().retired.retain(|known| Some(*known) != oldest);
    }
    drop(names);
    shared.serve_calls();
    removed
}

/// Removes a segment, durably.
pub(super) fn remove(folder: &Folder, number: u64) -> Result<()> {
    match folder.remove(number) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => folder.sync(),
    }
}

/// Prepares the next segment, from one that is not needed any more if there is one. False when none was made.
pub(super) fn make_spare(shared: &Arc<Shared>) -> bool {
    // A thread that prepares one does so once.
    let Some(names) = shared.names.lock() else { return false };
    let is_made = make_spare_alone(shared);
    drop(names);
    shared.serve_calls();
    shared.tell_of_room();
    is_made
}

/// As [`make_spare`], with the names held; tells nobody.
fn make_spare_alone(shared: &Arc<Shared>) -> bool {
    let mut core = shared.core();
    if !shared.wants_spare(&core) || core.poison.is_some() {
        return false;
    }
    core.number_max += 1;
    let number = core.number_max;
    let retired = core.retired.first().copied();
    drop(core);
    let made = next_segment(shared, number, retired);
    let is_made = made.is_ok();
    let mut core = shared.core();
    match made {
        Ok(file) => {
            core.spares.push_back(Live { number, file });
            (core.no_spare, core.no_spare_since) = (None, None);
        }
        Err(error) => (core.no_spare, core.no_spare_since) = (Some(error), Some(shared.clock.now())),
    }
    is_made
}

/// Who prepares a segment for those who do not wait, where there is no keeper: a thread that ends with it.
#[derive(Default)]
pub(super) struct Preparer {
    /// What keeps other writers out while the thread is at work.
    held: Option<Held>,
    thread: Option<JoinHandle<()>>,
    is_busy: bool,
}

/// What the log has locked. In a forked child it is left as it is: it is the parent's to give up.
#[derive(Clone)]
struct Held {
    lock: Option<Arc<dyn Any + Send + Sync>>,
    generation: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        if sys::fork_generation() != self.generation {
            std::mem::forget(self.lock.take());
        }
    }
}

impl Shared {
    /// Gives what a thread of the log's holds while it is at work.
    pub(super) fn lend(&self, held: Arc<dyn Any + Send + Sync>) {
        lock(&self.preparer).held = Some(Held { lock: Some(held), generation: sys::fork_generation() });
    }

    /// The log is closed: no thread prepares anything from here on. `waits` for the one that does.
    pub(super) fn end_preparing(&self, waits: bool) {
        let mut preparer = lock(&self.preparer);
        let (held, thread) = (preparer.held.take(), preparer.thread.take());
        drop(preparer);
        drop(held);
        if let Some(thread) = thread.filter(|thread| waits && thread.thread().id() != std::thread::current().id()) {
            // It does not panic; if it did, there is nothing left to do for it.
            let _ = thread.join();
        }
    }

    /// Has the next segment prepared, by another thread. Those who wait for room are told.
    pub(super) fn begin_spare(self: &Arc<Self>) -> Result<()> {
        if self.limits.has_keeper {
            let mut core = self.core();
            core.wake_keeper(&self.work);
            drop(core);
            self.work.notify_one();
            return Ok(());
        }
        let mut preparer = lock(&self.preparer);
        let Some(held) = preparer.held.clone().filter(|_| !preparer.is_busy) else { return Ok(()) };
        let shared = self.clone();
        let run = move || {
            let _held = held;
            if let Some(names) = shared.names.lock() {
                make_spare_alone(&shared);
                drop(names);
            }
            // Before anybody is told, who may find that another one is needed.
            lock(&shared.preparer).is_busy = false;
            shared.serve_calls();
            shared.tell_of_room();
        };
        let thread = std::thread::Builder::new().name("nowait-log-spare".into()).spawn(run).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error);
            let error = Error::from_errno(ErrorOp::Append, errno).at(&self.folder.path);
            error.detail("no thread can be started that prepares the next segment")
        })?;
        preparer.is_busy = true;
        // The one before has ended, or does so without looking at anything again.
        preparer.thread = Some(thread);
        Ok(())
    }

    /// The next segment is there, or cannot be had.
    fn tell_of_room(&self) {
        let rooms = std::mem::take(&mut self.core().rooms);
        self.room.notify_all();
        self.wake_all(rooms);
    }
}

fn next_segment(shared: &Arc<Shared>, number: u64, retired: Option<u64>) -> Result<File> {
    let (bytes, direct) = (shared.control.segment_bytes, shared.control.direct);
    if let Some(old) = retired {
        // One that cannot be had stays in line to be removed, and a new one is made.
        if let Ok(reused) = reuse(&shared.folder, bytes, direct, old, number) {
            shared.core().retired.retain(|known| *known != old);
            if let Some(file) = reused {
                return Ok(file);
            }
        }
    }
    shared.folder.prepare(number, bytes, direct, || {
        let core = shared.core();
        if core.closing {
            return Err(Error::new(ErrorOp::Append, ErrorKind::Closed).at(&shared.folder.path));
        }
        let waited_for = core.appends_wait > 0 || !core.rooms.is_empty();
        let hurry = waited_for || core.room_left(shared.usable_end()) < bytes / 2;
        let is_due = core.has_pending() && shared.is_due(&core);
        drop(core);
        if is_due {
            shared.write_all_here();
        }
        if !hurry && shared.limits.has_keeper {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    })
}

/// Gives a segment that is not needed any more a new number; None when it is not worth it, and gone.
fn reuse(folder: &Folder, bytes: u64, direct: bool, old: u64, number: u64) -> Result<Option<File>> {
    let file = match folder.open(old, true, direct) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if file.size().wait()? != bytes {
        remove(folder, old)?;
        return Ok(None);
    }
    folder.renumber(old, number)?;
    folder.sync()?;
    folder.open(number, true, direct).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::commit::NoRoom;
    use super::super::{Durability, Log, Options, Strategy, Submitter, SyncPolicy};
    use super::*;
    use crate::sim::{Faults, Sim};
    use crate::{Engine, Nowait};

    fn log_on(sim: &Sim) -> Log {
        let instance = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
        let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
        let options =
            Options::new().create(true).instance(&instance).segment_bytes(32 << 10).sync(SyncPolicy::Fixed(strategy));
        Log::open("/log", &options.maintenance(false)).unwrap().0
    }

    /// A stamp that was begun just after the log had failed, or begun to close, was never ended, and the keeper waited for it.
    #[test]
    fn no_stamp_is_begun_where_none_ends() {
        let sim = Sim::new(1);
        let log = log_on(&sim);
        sim.set_faults(Faults { write_error: 1.0, ..Faults::default() });
        assert_eq!(log.append(b"x").unwrap().wait().unwrap_err().kind(), ErrorKind::Indeterminate);
        assert_eq!(refusal(&log.0.shared), Some(ErrorKind::Poisoned));

        let log = log_on(&Sim::new(1));
        log.append(b"x").unwrap().wait().unwrap();
        let shared = log.0.shared.clone();
        log.close().unwrap();
        assert_eq!(refusal(&shared), Some(ErrorKind::Closed));
    }

    /// None if the stamp is not refused in time.
    fn refusal(shared: &Arc<Shared>) -> Option<ErrorKind> {
        let (told, hear) = std::sync::mpsc::channel();
        let shared = shared.clone();
        std::thread::spawn(move || {
            // Nobody listens any more when it was too late.
            let _ = told.send(match shared.stamp() {
                Err(NoRoom::Refused(error)) => Some(error.kind()),
                _ => None,
            });
        });
        hear.recv_timeout(Duration::from_secs(20)).ok().flatten()
    }
}
