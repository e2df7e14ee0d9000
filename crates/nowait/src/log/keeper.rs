//! What a log needs done that no commit should wait for: the next segment, segments that are not needed any more, records that
//! nobody waits for, and the stamp when it has become quiet.
//!
//! One thread for each log that is open for writing, asleep while the log is idle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::folder::Folder;
use super::writer::{Core, Live, Shared};
use crate::buf::lock;
use crate::error::{Error, ErrorKind, Operation as Name, Result};
use crate::file::File;

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
    if core.has_old_flight(TICK) {
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
    if core.is_due() && core.has_pending() {
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
    if core.is_due() && core.is_quiet() && core.lacks_stamp(shared.durable()) {
        drop(core);
        if shared.stamp(false).is_ok() {
            shared.core().numbers.stamps += 1;
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

impl Core {
    /// Long enough ago for what nobody waits for.
    fn is_due(&self) -> bool {
        self.last_active.elapsed() >= TICK
    }
}

impl Shared {
    /// One for what comes next, and those of the reserve.
    pub(super) fn wants_spare(&self, core: &Core) -> bool {
        let usable = self.control.segment_bytes - super::format::PAGE as u64;
        (core.spares.len() as u64) < 1 + self.limits.reserve_bytes.div_ceil(usable)
    }

    fn lacks_spare(&self, core: &Core) -> bool {
        let may_try = core.no_spare_since.is_none_or(|since| since.elapsed() >= RETRY);
        self.wants_spare(core) && may_try
    }

    fn is_idle(&self, core: &Core) -> bool {
        core.is_quiet() && !core.lacks_stamp(self.durable()) && !self.lacks_spare(core)
    }
}

/// Removes the oldest of the segments that are not needed any more. The next is only touched when it is gone for good: one that is left
/// before a gap would look as if the gap were damage.
fn remove_oldest(shared: &Shared) -> Result<()> {
    let _names = lock(&shared.names);
    let Some(number) = shared.core().retired.first().copied() else { return Ok(()) };
    remove(&shared.folder, number)?;
    shared.core().retired.retain(|known| *known != number);
    Ok(())
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
    let _names = lock(&shared.names);
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
        Err(error) => (core.no_spare, core.no_spare_since) = (Some(error), Some(Instant::now())),
    }
    drop(core);
    shared.room.notify_all();
    is_made
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
            return Err(Error::new(Name::Append, ErrorKind::Closed).at(&shared.folder.path));
        }
        let hurry = core.appends_wait > 0 || core.room_left(bytes) < bytes / 2;
        let is_due = core.has_pending() && core.is_due();
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
