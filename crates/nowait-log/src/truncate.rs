//! Truncates a log: at its beginning by whole segments, and at its end after any record.

use std::path::Path;
use std::sync::Arc;

use super::blocking::Blocking;
use super::commit::Shared;
use super::dir::{Blocks, DirLock, Segment, Window};
use super::format::End;
use super::open::{no_log, open_dir};
use super::options::Scan;
use super::recover::{Recovery, recover};
use nowait::{ErrorKind, ErrorOp, Nowait, Result, embed};

/// Removes records before `lsn` from a log that is not open. For an open log use
/// [`Log::truncate_prefix`](super::Log::truncate_prefix). The call removes segments that contain
/// only such records, but never the last segment with records. It needs no free space, so a log
/// that has filled its disk can be opened again. Returns the remaining contents. The removal is
/// durable on completion.
///
/// # Errors
/// [`ErrorKind::Locked`] if the log is open for writing; [`ErrorKind::Damaged`] if durable records
/// cannot be read; [`ErrorKind::NotFound`] if `dir` contains no log; errors of files.
pub fn truncate_prefix(dir: impl AsRef<Path>, lsn: u64) -> Blocking<Recovery> {
    truncate_prefix_in(Nowait::shared(), dir, lsn)
}

/// Removes records as [`truncate_prefix`] does, on the given instance.
///
/// # Errors
/// As [`truncate_prefix`].
pub fn truncate_prefix_in(instance: &Nowait, dir: impl AsRef<Path>, lsn: u64) -> Blocking<Recovery> {
    let (instance, dir): (Nowait, Arc<Path>) = (instance.clone(), dir.as_ref().into());
    Blocking::new(ErrorOp::SetLen, &dir.clone(), move || {
        let dir = open_dir(&instance, &dir)?;
        let contents = dir.contents()?;
        if !contents.has_control && contents.numbers.is_empty() {
            // Creates nothing in a directory without a log.
            return Err(no_log(&dir.path));
        }
        let _lock = DirLock::take(&dir)?;
        let mut found = recover(&dir, true, Scan::Tail)?.ok_or_else(|| no_log(&dir.path))?;
        found.check()?;
        if dir.give_up_before(lsn, &mut found.recorded, &mut found.chain)? {
            found.recovery.first_lsn =
                found.chain.first().map_or(found.end.lsn + 1, |oldest| oldest.header.first_lsn());
            found.recovery.segments = found.chain.iter().filter(|segment| !segment.is_empty()).count();
        }
        Ok(found.recovery)
    })
}

impl Shared {
    pub(super) fn truncate_prefix(&self, lsn: u64) {
        if self.is_forked() {
            return;
        }
        let mut state = self.state();
        state.retire_before(lsn);
        self.handover.publish(&state);
        // The file system may have space now.
        state.spare_failure = None;
        self.wake_maintenance(&mut state);
    }

    pub(super) fn truncate_suffix(self: &Arc<Self>, lsn: u64) -> Result<()> {
        if self.is_forked() {
            return Err(self.forked());
        }
        // New end of the log, with the epoch in which it was determined.
        let mut found: Option<(u64, Result<End>)> = None;
        loop {
            let last = self.state().next_lsn - 1;
            let pending = self.state().group_of(last);
            if let Some(group) = pending {
                self.wait(last, &group)?;
            }
            // Declared before the lock, so that it is dropped after it.
            let given_up;
            let mut state = self.state();
            self.check_open(&state)?;
            let first = state.first_lsn();
            if lsn + 1 < first || lsn >= state.next_lsn {
                let last = state.next_lsn - 1;
                let text = match last < first {
                    true => format!("the log is empty: it cannot be cut after record {lsn}"),
                    false => format!("the log cannot be cut after record {lsn}: it has records {first} to {last}"),
                };
                return Err(self.error(ErrorOp::SetLen, ErrorKind::NoSuchRecord, text));
            }
            if !state.is_quiet() {
                // A watermark block is in flight, or records were appended meanwhile.
                drop(state);
                std::thread::yield_now();
                continue;
            }
            if lsn == state.next_lsn - 1 {
                return Ok(());
            }
            if state.spares.is_empty() {
                match &state.spare_failure {
                    Some(failure) => return Err(failure.error.clone()),
                    None => {
                        drop(state);
                        self.wait_for_spare();
                    }
                }
                continue;
            }
            let place = match found.take() {
                // Records appended meanwhile are after this place.
                Some((epoch, place)) if epoch == state.epoch => place?,
                _ => {
                    // The file is read with no lock held.
                    let (epoch, segments) = (state.epoch, state.segments.clone());
                    drop(state);
                    found = Some((epoch, self.place_behind(&segments, lsn)));
                    continue;
                }
            };
            let cut_off = state.cut(place, embed::now(&self.dir.instance));
            let epoch = state.epoch;
            // Before the same LSNs are reused.
            given_up = self.handover.tail.clear();
            self.handover.publish(&state);
            // Nothing is pending before this block, and later appends follow it.
            let group = self.begin_watermark(&mut state).map_err(|no_room| self.no_room(no_room))?;
            drop(state);
            drop(given_up);
            self.wait(lsn, &group)?;
            // Before any later record is acknowledged: otherwise the cut-off records would become
            // the log's end again if the new segment were lost.
            let recorded = self.record();
            self.set_named(epoch);
            // Only after the new epoch is durable: until then, the cut-off segments are the end of
            // the log.
            let mut state = self.state();
            state.retired.extend(cut_off);
            state.spare_failure = None;
            self.wake_maintenance(&mut state);
            return match recorded {
                // Maintenance tries again.
                Err(error) if error.kind() == ErrorKind::NoSpace => Ok(()),
                recorded => recorded,
            };
        }
    }

    /// Returns the end of the block that holds `lsn`, or the beginning of the log.
    fn place_behind(&self, segments: &[Segment], lsn: u64) -> Result<End> {
        // The end of a segment is in the header of the next.
        if let Some(next) = segments.iter().find(|segment| segment.header.previous.lsn == lsn) {
            return Ok(next.header.previous);
        }
        let Some(segment) = segments.iter().rev().find(|segment| segment.header.first_lsn() <= lsn) else {
            return Ok(End::default());
        };
        if lsn > segment.last_lsn {
            let last = segment.last_lsn;
            let text = format!("record {lsn} was lost, and a salvage left it out; cut after record {last}");
            return Err(self.error(ErrorOp::SetLen, ErrorKind::NoSuchRecord, text));
        }
        let number = segment.header.number;
        let file = self.dir.open(number, false, self.control.direct)?;
        let mut blocks = Blocks::new(Window::new(file), &segment.header).up_to(segment.last_lsn);
        while blocks.next_lsn <= lsn {
            if blocks.next()?.is_none() {
                return Err(self.dir.damage(number, blocks.offset, 0, format!("record {lsn} cannot be found")));
            }
        }
        Ok(End { segment: number, offset: blocks.offset, lsn, lost_from: 0 })
    }
}
