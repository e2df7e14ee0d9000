//! Modification times at the resolution of the target: two seconds on FAT; one second, 100 ns or 1
//! ns elsewhere.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Stat, Timespec, Timestamps};
use rustix::io::{Errno, retry_on_intr};

use super::Tree;
use super::dir::Dir;
use crate::os::name;
use crate::shared::Ability;

/// The coarsest resolution of a file system (FAT).
const STEP_NS_MAX: i128 = 2_000_000_000;

/// A time that every coarser resolution rounds: an odd second, less a nanosecond.
const PROBE: Timespec = Timespec { tv_sec: 1_234_567_891, tv_nsec: 999_999_999 };

impl Tree<'_> {
    /// Returns true if the target is not older than the entry: its modification time is the entry's
    /// at the target's resolution, or later.
    pub(super) fn is_not_older(&self, dir: &Dir, stat: &Stat, old: &Stat) -> bool {
        modified_ns(old) >= self.kept_ns(dir, stat, old)
    }

    /// Returns true if the target has the entry's modification time at the target's resolution.
    pub(super) fn is_modified_alike(&self, dir: &Dir, stat: &Stat, old: &Stat) -> bool {
        modified_ns(old) == self.kept_ns(dir, stat, old)
    }

    /// Returns the entry's modification time at the target's resolution, in nanoseconds.
    fn kept_ns(&self, dir: &Dir, stat: &Stat, old: &Stat) -> i128 {
        let exact = modified_ns(stat);
        // A larger difference remains one at any resolution.
        if !(1..STEP_NS_MAX).contains(&(exact - modified_ns(old))) {
            return exact;
        }
        let learned = &self.shared.learned;
        let known = learned.time_step_ns(dir.place.device);
        let step = known.or_else(|| {
            let found = self.find_step_ns(dir, dir.target()?).ok()?;
            learned.keep_time_step(dir.place.device, found);
            Some(found)
        });
        exact - exact.rem_euclid(step.unwrap_or_else(|| likely_step_ns(old)))
    }

    /// Measures the target's resolution: sets the time of a new file, and reads it back.
    fn find_step_ns(&self, dir: &Dir, target: BorrowedFd<'_>) -> Result<i128, Errno> {
        let probe = |file: BorrowedFd<'_>| {
            let times = Timestamps { last_access: PROBE, last_modification: PROBE };
            retry_on_intr(|| rustix::fs::futimens(file, &times))?;
            let kept = modified_ns(&retry_on_intr(|| rustix::fs::fstat(file))?);
            let asked = i128::from(PROBE.tv_sec) * 1_000_000_000 + i128::from(PROBE.tv_nsec);
            Ok((asked - kept + 1).clamp(1, STEP_NS_MAX))
        };
        let devices = (dir.place.device, dir.place.device);
        if !self.shared.learned.is_refused(Ability::TemporaryFile, devices) {
            if let Ok(file) = name::create_unnamed(target, name::STAGED) {
                return probe(file.as_fd());
            }
        }
        if self.shared.options.dry_run {
            // A dry run must not create a name.
            return Err(Errno::OPNOTSUPP);
        }
        let temporary = dir.temporary_name(self.shared);
        let file = name::create_new(target, &temporary)?;
        let found = probe(file.as_fd());
        name::remove(target, &temporary)?;
        found
    }
}

/// Returns the modification time in nanoseconds.
fn modified_ns(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}

/// Returns the coarsest resolution that this time is a multiple of.
fn likely_step_ns(old: &Stat) -> i128 {
    let modified = modified_ns(old);
    let steps = [STEP_NS_MAX, STEP_NS_MAX / 2];
    steps.into_iter().find(|step| modified.rem_euclid(*step) == 0).unwrap_or(1)
}
