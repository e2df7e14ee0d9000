//! Reading a log without opening it for appending.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::blocking::Blocking;
use super::dir::LogDir;
use super::open::{no_log, open_dir};
use super::options::Scan;
use super::os;
use super::reader::Reader;
use super::recover::{Found, Recovery, recover, recover_aside};
use nowait::{ErrorKind, Nowait, Result};

/// Reads all of the log in `dir` and reports its contents. For a log in use the report may lag
/// slightly. The call changes nothing. The reported records are durable: if no later block proves
/// that, the call syncs the segment.
///
/// # Errors
/// * [`ErrorKind::NotFound`] if `dir` contains no log;
/// * [`ErrorKind::Damaged`] if neither the control file nor a segment's header identifies the log;
/// * [`ErrorKind::WouldBlock`] if the log changes too fast for a consistent view;
/// * those of files.
///
/// Damaged segments and unreadable pages are not errors here: see [`Recovery::damage`] and
/// [`Recovery::unreadable`].
pub fn inspect(dir: impl AsRef<Path>) -> Blocking<Recovery> {
    inspect_in(Nowait::shared(), dir)
}

/// Reports as [`inspect`], but reads only the segment headers and the end of the log, like
/// [`Scan::Tail`]. If anything there cannot result from a crash alone, it reads all of the log.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_end(dir: impl AsRef<Path>) -> Blocking<Recovery> {
    inspect_end_in(Nowait::shared(), dir)
}

/// Reports as [`inspect_end`], on the given instance.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_end_in(instance: &Nowait, dir: impl AsRef<Path>) -> Blocking<Recovery> {
    looking(instance, dir.as_ref(), |instance, dir| {
        find(&open_dir(instance, dir)?, Scan::Tail).map(|found| found.recovery)
    })
}

/// Reads the log in `dir` without opening it for appending. Returns its contents, and a reader of
/// its records from `from_lsn` on. Changes nothing.
///
/// The reader of a damaged log returns an error at each gap, and then the intact records after it.
/// [`Recovery::behind`] lists intact records before `first_lsn`, at which a reader may also begin.
///
/// # Errors
/// As [`inspect`].
pub fn read(dir: impl AsRef<Path>, from_lsn: u64) -> Blocking<(Reader, Recovery)> {
    read_in(Nowait::shared(), dir, from_lsn)
}

/// Reads a log as [`read`] does, on the given instance.
///
/// # Errors
/// As [`inspect`].
pub fn read_in(instance: &Nowait, dir: impl AsRef<Path>, from_lsn: u64) -> Blocking<(Reader, Recovery)> {
    looking(instance, dir.as_ref(), move |instance, dir| {
        let dir = open_dir(instance, dir)?;
        let found = find(&dir, Scan::All)?;
        let recovery = found.recovery.clone();
        Ok((Reader::of_found(dir, found, from_lsn), recovery))
    })
}

/// Reads intact records from the files that salvages put aside in `dir` ([`Recovery::aside`]).
/// These are no longer part of the log. It skips missing records. If two records have the same LSN,
/// it returns the one written last.
///
/// # Errors
/// As [`inspect`].
pub fn read_aside(dir: impl AsRef<Path>) -> Blocking<Reader> {
    read_aside_in(Nowait::shared(), dir)
}

/// Like [`read_aside`], on the given instance.
///
/// # Errors
/// As [`inspect`].
pub fn read_aside_in(instance: &Nowait, dir: impl AsRef<Path>) -> Blocking<Reader> {
    looking(instance, dir.as_ref(), |instance, dir| {
        let dir = open_dir(instance, dir)?;
        let (control, runs) = recover_aside(&dir)?.ok_or_else(|| no_log(&dir.path))?;
        Ok(Reader::of_aside(dir, control, runs))
    })
}

/// Reports as [`inspect`], on the given instance.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_in(instance: &Nowait, dir: impl AsRef<Path>) -> Blocking<Recovery> {
    looking(instance, dir.as_ref(), |instance, dir| {
        find(&open_dir(instance, dir)?, Scan::All).map(|found| found.recovery)
    })
}

fn looking<T: Send + 'static>(
    instance: &Nowait,
    dir: &Path,
    look: impl FnOnce(&Nowait, &Path) -> Result<T> + Send + Sync + 'static,
) -> Blocking<T> {
    let (instance, dir): (Nowait, Arc<Path>) = (instance.clone(), dir.into());
    Blocking::new(os::RECOVER, &dir.clone(), move || look(&instance, &dir))
}

/// Reads a log until two consecutive reads miss the same things.
pub(super) fn find(dir: &LogDir, scan: Scan) -> Result<Found> {
    // A log may change while it is read, so a missing part may have been written meanwhile. A part
    // counts as missing only if the next read misses it, too: that read begins after everything
    // that refers to the part was written.
    const LOOKS: u32 = 50;
    let mut before: Vec<(PathBuf, u64)> = Vec::new();
    for _ in 0..LOOKS {
        let mut found = match recover(dir, false, scan) {
            Ok(Some(found)) => found,
            Ok(None) => {
                return Err(no_log(&dir.path));
            }
            // The segment's file was recycled or removed.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let Recovery { damage, from_copy, unreadable, .. } = &mut found.recovery;
        let damaged = damage.iter().map(|damage| (damage.path.clone(), damage.bytes.start));
        let copied = from_copy.iter().map(|place| (place.path.clone(), place.offset));
        let doubts: Vec<(PathBuf, u64)> = damaged.chain(copied).collect();
        // A concurrent write does not explain a page that the device cannot read.
        if !unreadable.is_empty() || doubts.iter().all(|doubt| before.contains(doubt)) {
            return Ok(found);
        }
        before = doubts;
    }
    let error = os::error(os::RECOVER, ErrorKind::WouldBlock, &dir.path);
    Err(error.with_advice("the log changes faster than it can be inspected; try again later"))
}
