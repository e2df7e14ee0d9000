//! What a log needs done that no commit should wait for: the next segment, segments that are not needed any more, records that
//! nobody waits for, and the stamp when it has become quiet.
//!
//! One thread for each log that is open for writing, asleep while the log is idle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::folder::Folder;
use super::writer::{Core, Live, Shared};
use crate::error::Result;

/// How long a log is left alone before it is stamped, and a record that nobody waits for before it is written.
const TICK: Duration = Duration::from_millis(10);
/// After which a segment that could not be prepared is tried again, unless there is more room before.
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
    loop {
        let later = match tend(shared) {
            Tended::Something => continue,
            Tended::Closed => return,
            Tended::Nothing(later) => later,
        };
        let mut core = shared.core();
        if core.closing {
            continue;
        }
        match later {
            Later::In(time) => drop(shared.work.wait_timeout(core, time)),
            // Looked at again: it may have changed since.
            Later::WhenTold if core.is_quiet() && !core.lacks_stamp(shared.durable()) && !shared.lacks_spare(&core) => {
                core.keeper_sleeps = true;
                drop(shared.work.wait(core));
            }
            Later::WhenTold => {}
        }
    }
}

/// Does one thing that there is to do.
pub(super) fn tend(shared: &Arc<Shared>) -> Tended {
    let core = shared.core();
    if core.poison.is_some() {
        return if core.closing && core.is_quiet() { Tended::Closed } else { Tended::Nothing(Later::In(RETRY)) };
    }
    if core.closing {
        let (pending, quiet) = (core.has_pending(), core.is_quiet());
        drop(core);
        if pending {
            shared.write_all_here();
        }
        return if quiet { Tended::Closed } else { Tended::Nothing(Later::In(TICK)) };
    }
    let is_due = core.last_active.elapsed() >= TICK;
    if shared.lacks_spare(&core) {
        make_spare(shared, core);
        return Tended::Something;
    }
    if let Some(&number) = core.retired.first() {
        drop(core);
        let removed = shared.folder.remove(number).and_then(|()| shared.folder.sync());
        let mut core = shared.core();
        core.retired.retain(|known| *known != number);
        // It stays in the directory, and means nothing there.
        drop(removed);
        return Tended::Something;
    }
    if core.has_pending() && is_due {
        drop(core);
        shared.write_all_here();
        return Tended::Something;
    }
    if core.is_quiet() && core.lacks_stamp(shared.durable()) && is_due {
        drop(core);
        if shared.stamp(false).is_ok() {
            let mut core = shared.core();
            core.numbers.stamps += 1;
            return Tended::Something;
        }
        return Tended::Nothing(Later::In(RETRY));
    }
    match core.is_quiet() && !core.lacks_stamp(shared.durable()) {
        true if core.no_spare.is_some() => Tended::Nothing(Later::In(RETRY)),
        true => Tended::Nothing(Later::WhenTold),
        false => Tended::Nothing(Later::In(TICK)),
    }
}

impl Shared {
    /// One for what comes next, and those of the reserve.
    pub(super) fn wants_spare(&self, core: &Core) -> bool {
        let usable = self.control.segment_bytes - super::format::PAGE as u64;
        (core.spares.len() as u64) < 1 + self.limits.reserve_bytes.div_ceil(usable)
    }

    pub(super) fn lacks_spare(&self, core: &Core) -> bool {
        let may_try = core.no_spare_since.is_none_or(|since| since.elapsed() >= RETRY || !core.retired.is_empty());
        self.wants_spare(core) && may_try
    }
}

/// Prepares the next segment, from one that is not needed any more if there is one.
pub(super) fn make_spare(shared: &Shared, mut core: std::sync::MutexGuard<'_, Core>) {
    core.number_max += 1;
    let number = core.number_max;
    let retired = if core.retired.is_empty() { None } else { Some(core.retired.remove(0)) };
    drop(core);
    let reused =
        retired.map(|old| reuse(&shared.folder, shared.control.segment_bytes, shared.control.direct, old, number));
    let file = match reused {
        Some(Ok(Some(file))) => Ok(file),
        _ => shared.folder.prepare(number, shared.control.segment_bytes, shared.control.direct, |_| {
            let core = shared.core();
            let hurry = core.closing
                || core.appends_wait > 0
                || core.room_left(shared.control.segment_bytes) < shared.control.segment_bytes / 2;
            drop(core);
            if !hurry {
                std::thread::sleep(PAUSE);
            }
        }),
    };
    let mut core = shared.core();
    match file {
        Ok(file) => {
            core.spares.push_back(Live { number, file });
            (core.no_spare, core.no_spare_since) = (None, None);
        }
        Err(error) => (core.no_spare, core.no_spare_since) = (Some(error), Some(Instant::now())),
    }
    drop(core);
    shared.room.notify_all();
}

/// Gives a segment that is not needed any more a new number; None when it is not worth it, and gone.
fn reuse(folder: &Folder, bytes: u64, direct: bool, old: u64, number: u64) -> Result<Option<crate::file::File>> {
    let file = folder.open(old, true, direct)?;
    if file.size().wait()? != bytes {
        folder.remove(old)?;
        folder.sync()?;
        return Ok(None);
    }
    folder.renumber(old, number)?;
    folder.sync()?;
    folder.open(number, true, direct).map(Some)
}
