//! Modification times as a target keeps them: FAT in steps of two seconds, others in steps of one, of
//! 100 ns, or exactly.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Stat, Timespec, Timestamps};
use rustix::io::{Errno, retry_on_intr};

use super::Tree;
use super::dir::Dir;
use crate::os::name;
use crate::shared::Ability;

/// The longest step that a file system has (FAT).
const STEP_NS_MAX: i128 = 2_000_000_000;

/// A time that is exact in no step: an odd second, less a nanosecond.
const PROBE: Timespec = Timespec { tv_sec: 1_234_567_891, tv_nsec: 999_999_999 };

impl Tree<'_> {
    /// True if the target would not be older after another copy: its time is the entry's, as far as its
    /// file system keeps that, or a later one.
    pub(super) fn is_not_older(&self, dir: &Dir, stat: &Stat, old: &Stat) -> bool {
        modified_ns(old) >= self.kept_ns(dir, stat, old)
    }

    /// True if the target has the entry's modification time, as far as its file system keeps that.
    pub(super) fn is_modified_alike(&self, dir: &Dir, stat: &Stat, old: &Stat) -> bool {
        modified_ns(old) == self.kept_ns(dir, stat, old)
    }

    /// Returns what the entry's modification time would be in the target, in nanoseconds.
    fn kept_ns(&self, dir: &Dir, stat: &Stat, old: &Stat) -> i128 {
        let exact = modified_ns(stat);
        // What is further behind is older in any step.
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

    /// Sets the time of a new file in the target, and looks what it became.
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
            if let Ok(file) = name::create_unnamed(target) {
                return probe(file.as_fd());
            }
        }
        if self.shared.options.dry_run {
            // A name would be a change.
            return Err(Errno::OPNOTSUPP);
        }
        let temporary = dir.temporary_name(self.shared);
        let file = name::create_new(target, &temporary)?;
        let found = probe(file.as_fd());
        name::remove(target, &temporary)?;
        found
    }
}

/// Modification time in nanoseconds.
fn modified_ns(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}

/// The longest step in which a time is whole.
fn likely_step_ns(old: &Stat) -> i128 {
    let modified = modified_ns(old);
    let steps = [STEP_NS_MAX, STEP_NS_MAX / 2];
    steps.into_iter().find(|step| modified.rem_euclid(*step) == 0).unwrap_or(1)
}
