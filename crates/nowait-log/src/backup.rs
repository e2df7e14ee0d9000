//! Copies a log while it is written: whole segments, and the newest segment up to its durable end.
//!
//! An inspection of the log determines the segments to copy and the end of the copy. A segment that
//! is removed or reused during the copy loses its name, and no segment number is used twice. So
//! each name is looked up again after its file was copied. The copy is verified before it is
//! renamed to its final name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::blocking::Blocking;
use super::dir::{LogDir, Segment};
use super::format::Control;
use super::inspect::find;
use super::open::open_dir;
use super::options::Scan;
use super::os;
use super::recover::{Found, Recovery, epochs_of, read_control, recover};
use nowait::{Buf, Error, ErrorKind, ErrorOp, File, Nowait, Result};

/// Size of one read if `copy_file_range(2)` does not serve the files.
const PIECE_BYTES: usize = 1 << 20;
/// Maximum number of attempts, each after the log removed a segment before it was copied.
const TRIES: u32 = 20;

/// Copies the log in `dir` to `dest`, even while a process writes the log. `dest` must not exist,
/// or be an empty directory. Returns the contents of the copy.
///
/// The copy is a complete log. It contains every record that was durable at the call and was not
/// removed meanwhile. Its files are durable, and have the modes of the log's files. They share
/// blocks with the log if the file system supports it (`copy_file_range(2)`). The copy is read and
/// verified before it is renamed to `dest`. An interrupted backup leaves a directory beside `dest`
/// whose name ends in `.partial`. So does one whose last rename fails: the error names it.
///
/// Files that a salvage put aside are not copied. If the log removes its oldest records before they
/// are copied, the copy does not contain them. [`Log::backup`](super::Log::backup) pins its
/// records.
///
/// # Errors
/// As [`inspect`](super::inspect()). [`ErrorKind::Damaged`] if the log is damaged; nothing is
/// copied then. [`ErrorKind::InvalidInput`] if `dest` exists and is not an empty directory, or is a
/// mount point or a symbolic link, since the copy cannot replace these. [`ErrorKind::WouldBlock`]
/// if the log removes records faster than they are copied. Errors of files.
pub fn backup(dir: impl AsRef<Path>, dest: impl AsRef<Path>) -> Blocking<Recovery> {
    backup_in(Nowait::shared(), dir, dest)
}

/// Copies a log as [`backup`] does, on the given instance.
///
/// # Errors
/// As [`backup`].
pub fn backup_in(instance: &Nowait, dir: impl AsRef<Path>, dest: impl AsRef<Path>) -> Blocking<Recovery> {
    let (instance, dir): (Nowait, Arc<Path>) = (instance.clone(), dir.as_ref().into());
    let dest = dest.as_ref().to_path_buf();
    Blocking::new(ErrorOp::Copy, &dir.clone(), move || copy_log(&open_dir(&instance, &dir)?, &dest))
}

/// Copies a log under a temporary name, and renames the complete copy.
pub(super) fn copy_log(from: &LogDir, dest: &Path) -> Result<Recovery> {
    let instance = &from.instance;
    let partial = partial_name(dest)?;
    let is_there = check_dest(instance, dest)?;
    let rename = || -> Result<()> {
        if is_there {
            os::make_way(dest).map_err(|error| os::system_error(ErrorOp::Rename, &error, dest))?;
        }
        let renamed = instance.fs().rename(&partial, dest).wait();
        if is_there && renamed.is_err() {
            // The way was made. Where it still exists, this fails.
            let _ = instance.fs().create_dir(dest).wait();
        }
        renamed
    };
    instance.fs().create_dir(&partial).wait()?;
    if is_there {
        // The copy ends with the same rename. This trial fails early if `dest` is a symbolic link or a
        // mount point.
        if let Err(error) = rename() {
            let _ = instance.fs().remove_dir(&partial).wait();
            let refusal = os::error(ErrorOp::Copy, ErrorKind::InvalidInput, dest);
            let text = format!("a copy cannot replace it ({error}); name a new directory below it");
            return Err(refusal.with_advice(text));
        }
        instance.fs().create_dir(&partial).wait()?;
    }
    let copied = (|| {
        let to = LogDir::open_dir(instance, &partial)?;
        if let (Some(here), Some(there)) = (from.descriptor(), to.descriptor()) {
            let set = os::mode_of_dir(here).map_or(Ok(()), |mode| os::set_mode_of_dir(there, mode));
            set.map_err(|error| os::system_error(ErrorOp::Metadata, &error, &partial))?;
        }
        copy_whole(from, &to).map(|found| (to, found))
    })();
    let (to, found) = copied.inspect_err(|_| {
        // If this fails, the rest stays under its temporary name.
        let _ = clear(instance, &partial).and_then(|()| instance.fs().remove_dir(&partial).wait());
    })?;
    // The rename replaces only an empty directory.
    rename().map_err(|error| {
        error.with_detail(format!("to {}; the copy is complete and verified, rename it yourself", dest.display()))
    })?;
    to.sync_parent()?;
    Ok(found)
}

/// Returns a name beside `dest` that no other backup has.
fn partial_name(dest: &Path) -> Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some(name) = dest.file_name() else {
        let error = os::error(ErrorOp::Copy, ErrorKind::InvalidInput, dest);
        return Err(error.with_advice("name a directory for the copy"));
    };
    let mut partial = OsString::from(".");
    partial.push(name);
    partial.push(format!(".{}-{}.partial", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    Ok(dest.with_file_name(partial))
}

/// Refuses a destination that exists, unless it is an empty directory. Returns true for an empty
/// directory.
fn check_dest(instance: &Nowait, dest: &Path) -> Result<bool> {
    // True for a broken symbolic link, too.
    let has_name = || instance.fs().symlink_metadata(dest).wait().is_ok();
    match instance.fs().read_dir_names(dest).wait() {
        Ok(names) if names.is_empty() => return Ok(true),
        Err(error) if !has_name() => {
            return if error.kind() == ErrorKind::NotFound { Ok(false) } else { Err(error) };
        }
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Err(error),
        _ => {}
    }
    let error = os::error(ErrorOp::Copy, ErrorKind::InvalidInput, dest);
    Err(error.with_advice("it exists and is not an empty directory; name one that does not exist"))
}

fn clear(instance: &Nowait, dir: &Path) -> Result<()> {
    for name in instance.fs().read_dir_names(dir).wait()? {
        instance.fs().remove_file(dir.join(name)).wait()?;
    }
    Ok(())
}

/// Repeats the copy until it is complete, and verifies it.
fn copy_whole(from: &LogDir, to: &LogDir) -> Result<Recovery> {
    for _ in 0..TRIES {
        let found = find(from, Scan::Tail)?;
        found.check()?;
        if let Some(last_lsn) = copy_found(from, to, &found)? {
            to.sync()?;
            let copied = recover(to, false, Scan::All)?;
            let is_whole = |found: &Found| found.check().is_ok() && found.recovery.last_lsn == last_lsn;
            match copied.filter(is_whole) {
                Some(copied) => return Ok(Recovery { aside: Vec::new(), ..copied.recovery }),
                // Either the log is damaged, or a segment changed without a change of names.
                None => find(from, Scan::All)?.check()?,
            }
        }
        clear(&to.instance, &to.path)?;
    }
    Err(too_fast(from))
}

fn too_fast(from: &LogDir) -> Error {
    os::error(ErrorOp::Copy, ErrorKind::WouldBlock, &from.path).with_advice(
        "the log drops records faster than they are copied; retain more of them, or copy the log from its own \
         process with Log::backup",
    )
}

/// Copies the segments that an inspection found; returns the LSN of the last copied record. None if
/// the log removed them all.
fn copy_found(from: &LogDir, to: &LogDir, found: &Found) -> Result<Option<u64>> {
    let mut chain: &[Segment] = &found.chain;
    let mut copied = 0;
    while let Some(segment) = chain.get(copied) {
        if copy_segment(from, to, segment)? {
            copied += 1;
            continue;
        }
        // The log removed this segment and all earlier ones, or truncated its end.
        let gone = copied + 1;
        let oldest = read_control(from)?.control.map_or(0, |control| control.oldest);
        if oldest <= segment.header.number || gone == chain.len() {
            return Ok(None);
        }
        for older in chain.iter().take(copied) {
            to.remove(older.header.number)?;
        }
        (chain, copied) = (chain.get(gone..).unwrap_or_default(), 0);
    }
    let (Some(oldest), Some(newest)) = (chain.first(), chain.last()) else { return Ok(None) };
    let mut epochs = epochs_of(&found.recorded, chain);
    epochs.forget_before(oldest.header.epoch);
    let (head, last_lsn) = (newest.header.number, found.end.lsn);
    let control = Control {
        oldest: oldest.header.number,
        newest: head,
        head,
        watermark: found.recorded.watermark.min(last_lsn),
        epochs,
        ..found.recorded
    };
    to.write_control(&control)?;
    if let (Ok(here), Ok(there)) = (from.open_control(), to.open_control()) {
        copy_mode(&here, &there)?;
    }
    Ok(Some(last_lsn))
}

/// Copies a segment up to the end of its last valid block. Returns false if the segment was
/// removed.
fn copy_segment(from: &LogDir, to: &LogDir, segment: &Segment) -> Result<bool> {
    let number = segment.header.number;
    let is_gone = |error: &Error| error.kind() == ErrorKind::NotFound;
    let source = match from.open(number, false, false) {
        Err(error) if is_gone(&error) => return Ok(false),
        source => source?,
    };
    let copy = to.create(number)?;
    copy_mode(&source, &copy)?;
    copy_bytes(&source, &copy, segment.end)?;
    copy.set_len(segment.header.bytes).wait()?;
    copy.sync_all().wait()?;
    drop(copy);
    match from.open(number, false, false) {
        Ok(_) => Ok(true),
        Err(error) if is_gone(&error) => {
            to.remove(number)?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn copy_mode(from: &File, to: &File) -> Result<()> {
    os::copy_mode(from, to).map_err(|error| os::system_error(ErrorOp::Metadata, &error, to.path()))
}

/// Copies the first `end` bytes of a file. The kernel copies what it can, and may share blocks; reads and
/// writes copy the rest.
fn copy_bytes(from: &File, to: &File, end: u64) -> Result<()> {
    let mut at = os::copy_by_kernel(from, to, end);
    let mut buffer = Buf::zeroed(PIECE_BYTES.min(usize::try_from(end - at).unwrap_or(PIECE_BYTES)));
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let n = from.read_into(&mut buffer[..wanted], at)?;
        if n == 0 {
            // The verification detects the short copy.
            break;
        }
        to.write_all_from(&buffer[..n], at)?;
        at += n as u64;
    }
    Ok(())
}

#[cfg(all(test, not(nowait_log_loom)))]
mod tests {
    use nowait::sim::Sim;
    use nowait::{Engine, Nowait};

    use crate::dir::LogDir;
    use crate::pin::ReaderPin;
    use crate::{Log, Options, SyncPolicy};

    /// Symptom: the copy of a segment with mode 600 could be opened by other users until its mode
    /// was set, and read through that descriptor afterwards.
    #[test]
    fn a_segment_is_created_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let to = LogDir::open_dir(Nowait::shared(), dir.path()).unwrap();
        to.create(1).unwrap();
        let Some(mode) = crate::os::mode_at(to.descriptor().unwrap(), "00000000000000000001.seg") else {
            return eprintln!("skipped: this system has no modes");
        };
        assert_eq!(mode, 0o600);
    }

    /// Tests the pin that `Log::backup` holds.
    #[test]
    fn a_pin_of_all_keeps_what_is_there() {
        let instance = Nowait::builder().engine(Engine::Sim(Sim::new(1))).build().unwrap();
        let options = Options::new().create(true).instance(&instance).segment_bytes(16 << 10).maintenance(false);
        let (log, _) = Log::open("/log", &options.sync(SyncPolicy::Auto)).wait().unwrap();
        for _ in 0..20 {
            log.append(&[7; 3000]).wait().unwrap().wait().unwrap();
        }
        let segments = log.stats().segments;
        let pin = ReaderPin::of_all(&log.0.shared).unwrap();
        log.truncate_prefix(log.durable_lsn());
        while log.maintain() {}
        assert_eq!(log.stats().segments, segments);
        drop(pin);
        while log.maintain() {}
        assert!(log.stats().segments <= 2 && segments > 4, "{segments}");
        log.close().wait().unwrap();
    }
}
