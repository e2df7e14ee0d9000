//! A log's directory: names, and segments as files. Functions block the thread, except those that
//! return futures or polls.

mod blocks;
mod lock;
mod modes;
mod names;
mod prefix;
mod window;

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{CONTROL_BYTES, Control, NUMBER_MAX, PAGE};
use super::os;
use nowait::{Allocate, Buf, DirectIo, Error, ErrorKind, ErrorOp, File, Nowait, OpenOptions, Operation, Result};

pub(crate) use blocks::{Blocks, Broken, Orphans, Run, SEARCHED_AT_END, Segment, Sought};
pub(crate) use lock::{DirLock, LentLock};
pub(crate) use names::Names;
pub(crate) use prefix::{Ages, lsn_by_bytes};
pub use window::Unreadable;
pub(crate) use window::Window;

pub(crate) const CONTROL: &str = "control";
pub(crate) const CONTROL_TEMPORARY: &str = "control.tmp";
pub(crate) const CALIBRATION: &str = "calibrate.tmp";
pub(crate) const LOCK: &str = "lock";
const PREPARED: &str = "prepare-";
const TEMPORARY_END: &str = ".tmp";
const DAMAGED_END: &str = ".damaged";
const SEGMENT_END: &str = ".seg";
const DIGITS: usize = 20;

/// Bytes of one write of zeros. A commit during such a write is delayed. Smaller writes delay more
/// commits (p99); larger writes delay fewer commits for longer (p99.9).
const ZEROS_BYTES: usize = 1 << 20;

/// The directory of an open log, held open. So the log stays in the directory after a rename, or
/// after the process changes its working directory.
#[derive(Clone)]
pub(crate) struct LogDir {
    pub(crate) instance: Nowait,
    /// The path by which the directory was opened; for errors.
    pub(crate) path: Arc<Path>,
    dir: nowait::fs::Dir,
    /// Mode for the directory of a new log; none keeps the mode that the directory has.
    pub(crate) made_with: Option<u32>,
}

/// Contents of a directory, by name.
pub(crate) struct Contents {
    /// Numbers of segments, in order.
    pub(crate) numbers: Vec<u64>,
    pub(crate) has_control: bool,
    /// Names of files that salvages put aside.
    pub(crate) aside: Vec<String>,
    /// A name that does not belong to a log.
    pub(crate) other: Option<OsString>,
}

fn segment_name(number: u64) -> String {
    format!("{number:0DIGITS$}{SEGMENT_END}")
}

fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SEGMENT_END)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| plain && (1..=NUMBER_MAX).contains(number))
}

/// Number of the segment that a salvage put aside under this name. A segment may be put aside
/// several times.
pub(crate) fn aside_number(name: &str) -> Option<u64> {
    let name = name.strip_suffix(DAMAGED_END)?;
    let end = name.find(SEGMENT_END)? + SEGMENT_END.len();
    segment_number(&name[..end])
}

/// True only for files that an interrupted preparation or replacement leaves.
fn is_leftover(name: &str) -> bool {
    let number = || name.strip_prefix(PREPARED)?.strip_suffix(TEMPORARY_END)?.parse::<u64>().ok();
    name == CONTROL_TEMPORARY || name == CALIBRATION || number().is_some_and(|number| prepared_name(number) == name)
}

/// Whether an operating system creates files or directories of this name: in the root of a volume, or, macOS,
/// beside other files. A volume may have been written by another system than this one.
fn is_of_a_system(name: &str) -> bool {
    const NAMES: [&str; 9] = [
        "lost+found",
        ".DS_Store",
        ".fseventsd",
        ".Spotlight-V100",
        ".Trashes",
        ".TemporaryItems",
        ".DocumentRevisions-V100",
        "System Volume Information",
        "$RECYCLE.BIN",
    ];
    name.starts_with("._") || NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn prepared_name(number: u64) -> String {
    format!("{PREPARED}{number}{TEMPORARY_END}")
}

impl LogDir {
    pub(crate) fn open_dir(instance: &Nowait, path: &Path) -> Result<LogDir> {
        let dir = nowait::fs::Dir::open_in(instance, path).wait()?;
        Ok(LogDir { instance: instance.clone(), path: dir.path().into(), dir, made_with: None })
    }

    /// Returns the directory's descriptor; None on a simulator.
    pub(crate) fn descriptor(&self) -> Option<os::OpenDir<'_>> {
        self.dir.descriptor()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn segment_path(&self, number: u64) -> PathBuf {
        self.join(&segment_name(number))
    }

    pub(crate) fn contents(&self) -> Result<Contents> {
        let mut contents = Contents { numbers: Vec::new(), has_control: false, aside: Vec::new(), other: None };
        for name in self.dir.read_names().wait()? {
            match name.to_str() {
                Some(CONTROL) => contents.has_control = true,
                Some(name) if segment_number(name).is_some() => contents.numbers.extend(segment_number(name)),
                Some(name) if aside_number(name).is_some() => contents.aside.push(name.to_owned()),
                Some(name) if is_leftover(name) || name == LOCK || is_of_a_system(name) => {}
                _ => contents.other = contents.other.or(Some(name)),
            }
        }
        Ok(contents)
    }

    /// Removes leftovers of interrupted preparations and replacements.
    pub(crate) fn clean(&self) -> Result<()> {
        for name in self.dir.read_names().wait()? {
            if let Some(name) = name.to_str().filter(|name| is_leftover(name)) {
                self.dir.remove_file(name).wait()?;
            }
        }
        Ok(())
    }

    pub(crate) fn open(&self, number: u64, write: bool, direct: bool) -> Result<File> {
        self.open_file(OpenOptions::new().read(true).write(write).direct(direct), &segment_name(number))
    }

    /// Awaitable form of [`LogDir::open`].
    pub(crate) fn opening(&self, number: u64, direct: bool) -> Operation<'_, Result<File>> {
        self.opening_file(OpenOptions::new().read(true).direct(direct), &segment_name(number))
    }

    pub(crate) fn open_file(&self, options: &OpenOptions, name: &str) -> Result<File> {
        self.opening_file(options, name).wait()
    }

    /// Awaitable form of [`LogDir::open_file`].
    pub(crate) fn opening_file(&self, options: &OpenOptions, name: &str) -> Operation<'_, Result<File>> {
        self.dir.open_file(options, name)
    }

    /// Creates the file of a new segment for its owner only; the caller sets the mode later. With a
    /// wider mode, another user could open the file now, and read all later writes.
    pub(crate) fn create(&self, number: u64) -> Result<File> {
        self.open_file(OpenOptions::new().write(true).create_new(true).mode(0o600), &segment_name(number))
    }

    pub(crate) fn open_control(&self) -> Result<File> {
        self.open_file(OpenOptions::new().read(true), CONTROL)
    }

    pub(crate) fn remove_file(&self, name: &str) -> Result<()> {
        self.dir.remove_file(name).wait()
    }

    /// Replaces the control file durably. On a full disk, overwrites it in place.
    pub(crate) fn write_control(&self, control: &Control) -> Result<()> {
        match self.replace_control(control) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                // If overwriting fails, too, return the error of the replacement, which is the
                // cause.
                self.overwrite_control(control).map_err(|_| error)
            }
            replaced => replaced,
        }
    }

    fn replace_control(&self, control: &Control) -> Result<()> {
        // The file is not truncated, since its space is already allocated (`reserve_control`).
        let file = self.make_control()?;
        file.write_all_from(&control.encode(), 0)?;
        file.sync_all().wait()?;
        drop(file);
        self.dir.rename(CONTROL_TEMPORARY, CONTROL).wait()?;
        self.sync()
    }

    /// Overwrites the two copies in the control file, one after the other. Each copy is durable
    /// before the other is written, so one of them is intact at any time. The copy in use, which is
    /// the first intact one, is written last: after an interrupted call, the other one may be
    /// older.
    fn overwrite_control(&self, control: &Control) -> Result<()> {
        let file = self.open_file(OpenOptions::new().read(true).write(true), CONTROL)?;
        let is_first_bad = Control::bad_copy(Window::past_errors(file.clone()).at(0, CONTROL_BYTES)?) == Some(0);
        let bytes = control.encode();
        for at in if is_first_bad { [0, PAGE] } else { [PAGE, 0] } {
            file.write_all_from(&bytes[at..at + PAGE], at as u64)?;
            file.sync_data().wait()?;
        }
        Ok(())
    }

    /// Reserves disk space for the next replacement of the control file, which must precede the
    /// removal of a segment on a full disk.
    pub(crate) fn reserve_control(&self) -> Result<()> {
        self.make_control()?.write_all_from(&[0; CONTROL_BYTES], 0)
    }

    fn make_control(&self) -> Result<File> {
        self.make_file(OpenOptions::new().write(true).create(true), CONTROL_TEMPORARY, self.control_mode())
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.dir.sync().wait()
    }

    pub(crate) fn sync_parent(&self) -> Result<()> {
        self.dir.sync_parent().wait().or_else(|error| if os::is_of_another_user(&error) { Ok(()) } else { Err(error) })
    }

    /// Removes a segment, durably.
    pub(crate) fn remove(&self, number: u64) -> Result<()> {
        match self.dir.remove_file(segment_name(number)).wait() {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => self.sync(),
        }
    }

    /// Frees the space of a segment that contains nothing of the log, but keeps its name.
    pub(crate) fn empty(&self, number: u64) -> Result<()> {
        match self.open_file(OpenOptions::new().write(true).truncate(true), &segment_name(number)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Renames a segment that is no longer needed to the number of a new one.
    pub(crate) fn renumber(&self, from: u64, to: u64) -> Result<()> {
        self.dir.rename_new(segment_name(from), segment_name(to)).wait()
    }

    pub(crate) fn put_aside(&self, number: u64) -> Result<()> {
        self.name_aside(&segment_name(number), number)
    }

    /// Renames a file so that recovery ignores it.
    fn name_aside(&self, from: &str, number: u64) -> Result<()> {
        let name = segment_name(number);
        let mut aside = format!("{name}{DAMAGED_END}");
        for again in 2..=u32::MAX {
            match self.dir.rename_new(from, &aside).wait() {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    aside = format!("{name}.{again}{DAMAGED_END}")
                }
                other => return other,
            }
        }
        Err(os::error(ErrorOp::Rename, ErrorKind::AlreadyExists, &self.join(&name)))
    }

    /// Puts a copy of a segment aside. The copy is durable, but its name is not yet. Unreadable
    /// pages become zeros, and zeros become holes.
    pub(crate) fn copy_aside(&self, number: u64, bytes: u64, direct: bool) -> Result<()> {
        let temporary = prepared_name(number);
        let made = (|| {
            let mut window = Window::past_errors(self.open(number, false, direct)?);
            let options = OpenOptions::new().write(true).create(true).truncate(true).clone();
            let copy = self.make_file(&options, &temporary, self.segment_mode())?;
            copy.set_len(bytes).wait()?;
            let mut at = 0;
            while at < bytes {
                let page = window.at(at, PAGE)?;
                if page.is_empty() {
                    break;
                }
                if page.iter().any(|byte| *byte != 0) {
                    copy.write_all_from(page, at)?;
                }
                at += page.len() as u64;
            }
            copy.sync_all().wait()?;
            drop(copy);
            self.name_aside(&temporary, number)
        })();
        if made.is_err() {
            let _ = self.dir.remove_file(&temporary).wait();
        }
        made
    }

    /// Prepares a segment of written zeros. Allocated space alone is not enough: a write to
    /// unwritten extents makes the file system convert them and wait for its journal. `pause`
    /// as for [`fill`].
    pub(crate) fn prepare(
        &self,
        number: u64,
        bytes: u64,
        direct: bool,
        pause: impl FnMut() -> Result<()>,
    ) -> Result<File> {
        // One name per number, so that a later preparation never overwrites this segment with
        // zeros.
        let temporary = prepared_name(number);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).direct(direct);
        let made = (|| {
            let file = self.make_file(&options, &temporary, self.segment_mode())?;
            fill(&file, 0..bytes, pause)?;
            drop(file);
            self.dir.rename_new(&temporary, segment_name(number)).wait()?;
            self.sync()?;
            self.open(number, true, direct)
        })();
        if made.is_err() {
            let _ = self.dir.remove_file(&temporary).wait();
        }
        made
    }

    pub(crate) fn damage(&self, number: u64, offset: u64, length: u64, what: impl std::fmt::Display) -> Error {
        os::damaged(&self.segment_path(number), offset, length, what)
    }
}

/// Writes durable zeros to the end of a segment. Calls `pause` between pieces; an error of `pause`
/// ends the call.
pub(crate) fn fill(file: &File, bytes: Range<u64>, mut pause: impl FnMut() -> Result<()>) -> Result<()> {
    let Range { start: mut at, end } = bytes;
    match file.allocate(Allocate::Reserve, at, end - at).wait() {
        Err(error) if error.kind() != ErrorKind::Unsupported => return Err(error),
        _ => {}
    }
    let zeros = Buf::zeroed(ZEROS_BYTES.min((end - at) as usize));
    while at < end {
        let length = (end - at).min(zeros.len() as u64);
        file.write_all_from(&zeros[..length as usize], at)?;
        at += length;
        if at < end {
            pause()?;
        }
    }
    file.sync_all().wait()
}

/// True if reads and writes of the file bypass the page cache. Simulated files do, unless the
/// simulator refuses direct I/O.
pub(crate) fn is_direct(file: &File) -> bool {
    match file.direct() {
        DirectIo::Granted { .. } => true,
        DirectIo::NotAsked => file.descriptor().is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use nowait::Engine;
    use nowait::sim::Sim;

    use super::*;
    use crate::commit::fixture;
    use crate::os::lock;

    /// Two crashes on a full disk: the first leaves copies of two states, of which the newer is
    /// valid.
    #[test]
    fn a_control_file_that_is_overwritten_is_never_an_older_one() {
        let states = [1, 2, 3].map(|oldest| {
            let mut control = Control { oldest, newest: 3, ..fixture::start().recorded };
            // More than a sector contains.
            (1..=60).for_each(|epoch| control.epochs.begin(epoch, oldest * epoch));
            control
        });
        let copy = |state: usize| states[state].encode()[..PAGE].to_vec();
        for copies in [[copy(1), copy(0)], [copy(1), copy(1)], [vec![7; PAGE], copy(1)], [copy(1), vec![7; PAGE]]] {
            let sim = Sim::new(1);
            let instance = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
            instance.fs().create_dir("/log").wait().unwrap();
            let dir = LogDir::open_dir(&instance, Path::new("/log")).unwrap();
            dir.sync_parent().unwrap();
            sim.create("/log/control", copies.concat());
            sim.set_capacity(CONTROL_BYTES as u64);
            let found = Arc::new(Mutex::new(Vec::new()));
            let note = {
                let found = found.clone();
                move |sim: &Sim| {
                    let crashes = (0..50).map(|seed| sim.crash_at_random(seed).contents("/log/control").unwrap());
                    lock(&found).extend(crashes.map(|bytes| Control::decode(&bytes).unwrap().oldest));
                }
            };
            sim.watch(note.clone());
            dir.write_control(&states[2]).unwrap();
            note(&sim);
            let found = std::mem::take(&mut *lock(&found));
            assert!(found.contains(&2) && found.ends_with(&[3; 50]), "{found:?}");
            assert!(!found.contains(&1), "{found:?}");
        }
    }

    #[test]
    fn names_of_segments() {
        assert_eq!(aside_number("00000000000000000007.seg.damaged"), Some(7));
        assert_eq!(aside_number("00000000000000000007.seg.2.damaged"), Some(7));
        assert_eq!(aside_number("notes.damaged"), None);
        assert_eq!(segment_name(7), "00000000000000000007.seg");
        for number in [1, 7, NUMBER_MAX] {
            assert_eq!(segment_number(&segment_name(number)), Some(number));
        }
        for other in [
            "7.seg",
            "18446744073709551615.seg",
            "00000000000000000000.seg",
            "+0000000000000000007.seg",
            "00000000000000000007.seg.damaged",
        ] {
            assert_eq!(segment_number(other), None);
        }
    }
}
