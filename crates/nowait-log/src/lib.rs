//! A durable log: many small records, each on stable storage when its [`Ticket`] says so, read back
//! after a crash.
//!
//! ```
//! use nowait_log::{Log, Options};
//!
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path().join("log");
//! let options = Options::new().create(true).segment_bytes(1 << 20);
//! let (log, recovery) = Log::open(&dir, &options).wait()?;
//! println!("{} records found", recovery.last_lsn);
//! let first = log.append(b"one record").wait()?;
//! let batch = log.append_batch([b"two of them, ".as_slice(), b"both or none"]).wait()?;
//! // Durable: neither the process nor the machine can lose it any more.
//! batch.wait()?;
//! assert!(log.durable_lsn() >= first.lsn());
//! log.close().wait()?;
//!
//! let (log, recovery) = Log::open(&dir, &options).wait()?;
//! assert_eq!(recovery.last_lsn, 3);
//! let mut reader = log.reader(1);
//! while let Some(record) = reader.next().wait()? {
//!     println!("{}: {} bytes", record.lsn, record.bytes.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Whatever may wait is awaited, on any executor, or waited for: no future of a log blocks its
//! thread.
//!
//! ```
//! # use nowait_log::{Log, Options};
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path().join("log");
//! # nowait::block_on(async {
//! let (log, _) = Log::open(&dir, &Options::new().create(true).segment_bytes(1 << 20)).await?;
//! let ticket = log.append(b"one record").await?; // there is room: it is copied, and has a number
//! ticket.await?; // it is durable
//! log.close().await
//! # }).unwrap();
//! ```
//!
//! # When a record is durable
//!
//! A record is durable when its ticket is ready, and then so is every record before it. Until then
//! a crash may keep it or not; it always keeps a prefix of what was appended, and a batch as a
//! whole or not at all. Readers return durable records only.
//!
//! The first write or sync that fails poisons the log:
//!
//! * records in flight may be on disk or not ([`Indeterminate`](nowait::ErrorKind::Indeterminate));
//! * records that were only appended are not ([`Poisoned`](nowait::ErrorKind::Poisoned));
//! * nothing more is acknowledged; open the log anew to go on.
//!
//! A full disk shows when the next segment is prepared, so that an append is refused
//! ([`NoSpace`](nowait::ErrorKind::NoSpace)) before it has an LSN. (On copy-on-write file systems,
//! such as btrfs, and on thinly provisioned devices, a write may need room all the same; without it
//! the write fails and poisons the log.)
//!
//! # Who writes
//!
//! A thread that waits, not a thread of the log. [`Ticket::wait`] writes what all threads have
//! appended, in one write, and waits for the device in the call that submits it; records that come
//! meanwhile share the next write. Where tickets are awaited, or have callbacks, the ring (or the
//! pool) makes the write, and the thread that notices its completion submits the next. A thread
//! named `nowait-log` prepares segments, and sleeps while the log is idle. Where the thread that writes
//! is held up (stopped, or without processor time), another that waits, or `nowait-log`, writes the same
//! block again: after 20 ms, or four times the slowest write of late. Callbacks have a thread
//! of their own, while there are any.
//!
//! # Where it is
//!
//! On disk a log is a directory of its own; `docs/log-format.md` in the repository has its layout.
//! The directory is held open: a log stays in it when it is renamed or the process changes its
//! working directory.
//!
//! A log is made only when [`Options::create`] asks for it, and only in a directory that is new or
//! empty. Ask for it where the application is set up. An application that expects its log then gets
//! [`NotFound`](nowait::ErrorKind::NotFound), not an empty log, when the volume that holds it is
//! not mounted.

mod append;
mod backup;
mod blocking;
mod calibrate;
mod commit;
mod dir;
mod event;
mod follow;
mod format;
mod inspect;
mod maintenance;
mod open;
mod options;
mod os;
mod pin;
mod preparer;
mod reader;
mod recover;
mod retention;
mod sealed;
mod segments;
mod stats;
mod ticket;
mod tickets;
mod truncate;

use std::path::Path;
use std::sync::Arc;

use commit::Incoming;
use format::FRAME_BYTES;
use maintenance::Done;
use nowait::{ErrorKind, ErrorOp, Result};
use open::Open;
use pin::ReaderPin;
use ticket::Records;

pub use backup::{backup, backup_in};
pub use blocking::Blocking;
pub use dir::Unreadable;
pub use event::Event;
pub use follow::{FollowFrom, Followed, Follower, follow, follow_in};
pub use format::Entry;
pub use inspect::{inspect, inspect_end, inspect_end_in, inspect_in, read, read_aside, read_aside_in, read_in};
pub use options::{Calibration, Durability, Options, Scan, Strategy, Submitter, SyncPolicy};
pub use reader::{Next, Reader, Record, Tail};
pub use recover::{Damage, Place, Recovery};
pub use retention::Retention;
pub use sealed::SealedBlock;
pub use stats::{LogStats, Percentiles};
pub use ticket::{Append, Durable, Room, Ticket};
pub use tickets::Tickets;
pub use truncate::{truncate_prefix, truncate_prefix_in};

/// A log that is open for appending. Clones are handles of the same log; any thread may use any of
/// them.
///
/// When the last handle is dropped, what was appended is written, and a watermark block that covers
/// it, in the background; [`Log::close`] waits for that. Futures of a log are handles, too, but for
/// those that borrow one.
#[derive(Clone)]
pub struct Log(Arc<Open>);

impl Log {
    /// Opens the log in `dir` for appending. Makes one if there is none and [`Options::create`]
    /// asks for it. Reads all of it first, or its end: see [`Options::scan`]. Use [`Log::reader`] to
    /// read the records.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] when another process, or this one, has it open. [`ErrorKind::Damaged`]
    /// when something that was durable cannot be read: see [`Options::salvage`] and [`inspect`].
    /// [`ErrorKind::NotFound`] when there is no log and none is to be made;
    /// [`ErrorKind::InvalidInput`] when one is to be made in a directory that holds something else.
    /// [`ErrorKind::NoSpace`]; [`ErrorKind::Unsupported`] for another version of the format; those
    /// of files.
    pub fn open(dir: impl AsRef<Path>, options: &Options) -> Blocking<(Log, Recovery)> {
        let dir: Arc<Path> = dir.as_ref().into();
        let options = options.clone();
        Blocking::new(ErrorOp::Open, &dir.clone(), move || {
            let (open, recovery) = Open::new(&dir, &options)?;
            Ok((Log(Arc::new(open)), recovery))
        })
    }

    /// Appends a record: copies it, and gives a ticket with its number. Waits only while
    /// [`Options::pending_bytes_max`] bytes are not durable, or the next segment is not ready. The
    /// record is written when a thread or task waits for a ticket, or after some milliseconds.
    ///
    /// # Errors
    /// The record is not in the log then. [`ErrorKind::NoSpace`]; [`ErrorKind::Poisoned`] after a
    /// write failed; [`ErrorKind::Closed`]; [`ErrorKind::InvalidInput`] when it does not fit into a
    /// segment.
    pub fn append<'a>(&'a self, record: &'a [u8]) -> Append<'a> {
        self.appending(Records::One([record.into()]), false)
    }

    /// Appends a record of a kind of its own, as [`Log::append`], which gives kind 0. The log keeps
    /// the kind, with a checksum, and does not interpret it: [`Record::kind`] gives it back.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_kind<'a>(&'a self, kind: u8, record: &'a [u8]) -> Append<'a> {
        self.appending(Records::One([Entry { kind, bytes: record }]), false)
    }

    /// Appends records as a batch, which a crash keeps as a whole or not at all. Gives the ticket
    /// of the last. Takes bytes, or each with its kind as an [`Entry`].
    ///
    /// # Errors
    /// As [`Log::append`]; [`ErrorKind::InvalidInput`] for an empty batch.
    pub fn append_batch<'a, R: Into<Entry<'a>>>(&'a self, records: impl IntoIterator<Item = R>) -> Append<'a> {
        self.appending(Records::Batch(records.into_iter().map(Into::into).collect()), false)
    }

    /// Appends a record, as [`Log::append`], and uses the reserve ([`Options::reserve_bytes`]) when
    /// there is no other room.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_from_reserve<'a>(&'a self, record: &'a [u8]) -> Append<'a> {
        self.appending(Records::One([record.into()]), true)
    }

    /// Appends a record of `bytes` bytes that `fill` writes, as [`Log::append`]. `fill` is called
    /// once, here and at once, with zeros, in memory of the append's own: it may take long, use the
    /// log, or panic, and holds nothing up. When it panics nothing is appended. The log takes the
    /// memory over: other appends do not wait for a copy of a large record, as they do with
    /// [`Log::append`]; the thread that writes the block makes it, and gives the memory back.
    ///
    /// ```
    /// # use nowait_log::{Log, Options};
    /// # fn main() -> nowait::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, _) = Log::open(dir.path().join("log"), &Options::new().create(true).segment_bytes(1 << 20)).wait()?;
    /// let ticket = log.append_with(12, |record| {
    ///     record[..4].copy_from_slice(&7_u32.to_le_bytes());
    ///     record[4..].copy_from_slice(&42_u64.to_le_bytes());
    /// });
    /// assert_eq!(ticket.wait()?.wait()?, 1);
    /// # log.close().wait()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Log::append`]. `fill` is not called for a record that does not fit into a segment, or for
    /// which there is no memory.
    pub fn append_with(&self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Append<'_> {
        self.append_kind_with(0, bytes, fill)
    }

    /// Appends a record of a kind of its own that `fill` writes: [`Log::append_kind`] and
    /// [`Log::append_with`].
    ///
    /// # Errors
    /// As [`Log::append_with`].
    pub fn append_kind_with(&self, kind: u8, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Append<'_> {
        let records = match self.0.shared.memory_for(bytes) {
            Ok(mut bytes) => {
                fill(&mut bytes);
                Records::Filled { kind, bytes }
            }
            Err(error) => Records::Refused(error),
        };
        self.appending(records, false)
    }

    fn appending<'a>(&'a self, records: Records<'a>, from_reserve: bool) -> Append<'a> {
        Append { log: &self.0.shared, records, from_reserve, stalled: None, is_ready: false }
    }

    /// Appends a record, as [`Log::append`], without waiting.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when it would have to wait: too much is pending, or the next
    /// segment is not ready. Making room has begun then; wait for [`Log::room`], and try again.
    pub fn try_append(&self, record: &[u8]) -> Result<Ticket> {
        let shared = &self.0.shared;
        Ok(Ticket::new(shared, shared.append(Incoming::Copied(&[record.into()]), false, false)?))
    }

    /// Waits until a record of `bytes` bytes can be appended at once: await it, or
    /// [`wait`](Room::wait) for it, after [`Log::try_append`] was refused. (For a batch: the bytes
    /// of all, and 9 more for each record but one.)
    ///
    /// It reserves nothing: others may append first, and then `try_append` refuses again. While it
    /// waits, what is in the way is written, and the next segment prepared. Dropping it changes
    /// nothing. It keeps the log open as a clone does.
    ///
    /// # Errors
    /// Those of [`Log::append`]: [`ErrorKind::NoSpace`] when the next segment cannot be prepared,
    /// [`ErrorKind::Poisoned`], [`ErrorKind::Closed`], [`ErrorKind::InvalidInput`] for a record
    /// that never fits.
    pub fn room(&self, bytes: usize) -> Room {
        Room { log: self.0.clone(), payload: bytes.saturating_add(FRAME_BYTES) }
    }

    /// Last record that is durable with everything before it; 0 when there is none.
    pub fn durable_lsn(&self) -> u64 {
        self.0.shared.durable()
    }

    /// Last record that was appended; 0 when there is none.
    pub fn last_lsn(&self) -> u64 {
        if self.0.shared.is_forked() {
            return self.durable_lsn();
        }
        self.0.shared.state().next_lsn - 1
    }

    /// Waits until record `lsn` is durable; it may be appended later.
    pub fn wait_durable(&self, lsn: u64) -> Durable {
        Durable::new(&self.0.shared, lsn)
    }

    /// Reads durable records from `lsn` on, while the log is written. [`Reader::tail`] waits for
    /// those to come.
    pub fn reader(&self, lsn: u64) -> Reader {
        Reader::of_live(self.0.shared.clone(), lsn)
    }

    /// Gives up records before `lsn`: segments that hold no others are reused or removed. So some
    /// of them may remain, also after the log is opened again. Records that a reader has pinned
    /// ([`Reader::pin`]) go when it has read them. See [`Options::retain`] for a log that does this
    /// by itself.
    pub fn truncate_prefix(&self, lsn: u64) {
        self.0.shared.truncate_prefix(lsn);
    }

    /// Gives up all records after `lsn`, durably; the next record to be appended is `lsn + 1`.
    /// Waits first until everything that was appended is durable; appends wait meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchRecord`] when `lsn` is no longer in the log, or not yet;
    /// [`ErrorKind::NoSpace`], since the log continues in a new segment; those of writes.
    pub fn truncate_suffix(&self, lsn: u64) -> Blocking<()> {
        let log = self.clone();
        Blocking::new(ErrorOp::SetLen, &self.0.shared.dir.path, move || log.0.shared.truncate_suffix(lsn))
    }

    /// Copies the log to `dest` while it is written. `dest` must not exist, or be an empty
    /// directory. [`backup`](backup()) is the same for other processes. The records in the log are
    /// pinned: none is given up before it is copied, and the log grows meanwhile. Returns the
    /// contents of the copy, which include every record that was durable at the call.
    ///
    /// # Errors
    /// As [`backup`](backup()).
    pub fn backup(&self, dest: impl AsRef<Path>) -> Blocking<Recovery> {
        let (log, dest) = (self.clone(), dest.as_ref().to_path_buf());
        Blocking::new(ErrorOp::Copy, &self.0.shared.dir.path, move || {
            let _pin = ReaderPin::of_all(&log.0.shared)?;
            backup::copy_log(&log.0.shared.dir, &dest)
        })
    }

    /// Writes all appended records, then a watermark block that covers them, and closes the log for
    /// all clones: later appends through any of them fail. The log can be opened again when this is
    /// ready. Tickets keep their results. After a successful close, damage is never mistaken for a
    /// torn tail.
    ///
    /// # Errors
    /// Those of writes, and of a log that has failed before.
    pub fn close(self) -> Blocking<()> {
        let path = self.0.shared.dir.path.clone();
        Blocking::new(ErrorOp::Append, &path, move || self.close_here())
    }

    fn close_here(self) -> Result<()> {
        let shared = &self.0.shared;
        if shared.is_forked() {
            return Ok(());
        }
        let Some(last) = shared.begin_closing(true) else {
            return Err(shared.error(ErrorOp::Append, ErrorKind::Closed, "the log was closed already"));
        };
        let result = last.and_then(|group| shared.wait(0, &group).map(drop));
        let result = result.and_then(|()| shared.record_end());
        self.0.end();
        result
    }

    /// Counters since the log was opened.
    pub fn stats(&self) -> LogStats {
        if self.0.shared.is_forked() {
            return LogStats::default();
        }
        self.0.shared.stats()
    }

    /// Strategy by which blocks get to stable storage.
    pub fn strategy(&self) -> Strategy {
        Strategy::of(&self.0.shared.control)
    }

    /// True if blocks bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.0.shared.control.direct
    }

    /// Directory of the log.
    pub fn path(&self) -> &Path {
        &self.0.shared.dir.path
    }

    /// Does one piece of maintenance, for a log without a maintenance thread
    /// ([`Options::maintenance`]). Blocks for it; false when there is nothing to do. A piece is:
    ///
    /// * to prepare the next segment;
    /// * to remove one that is no longer needed, or to record in the control file which there are;
    /// * to write records for which nothing waits, some milliseconds after they were appended;
    /// * to write a watermark block when the log has become idle.
    pub fn maintain(&self) -> bool {
        matches!(maintenance::run_once(&self.0.shared), Done::Something)
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("path", &self.path()).field("durable_lsn", &self.durable_lsn()).finish()
    }
}

/// The guide's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/log.md")]
struct Guide;

#[cfg(all(test, not(nowait_log_loom)))]
mod tests {
    use std::path::{Path, PathBuf};

    /// The rooms in order, as in the ARCHITECTURE.md of this crate.
    const ROOMS: [&str; 25] = [
        "format",
        "os",
        "blocking",
        "retention",
        "event",
        "sealed",
        "options",
        "stats",
        "dir",
        "recover",
        "calibrate",
        "preparer",
        "commit",
        "segments",
        "append",
        "maintenance",
        "open",
        "truncate",
        "ticket",
        "tickets",
        "pin",
        "reader",
        "inspect",
        "backup",
        "follow",
    ];

    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, found),
                false => found.push(path),
            }
        }
    }

    /// Names that follow `prefix` in a text, up to the first character that no name has.
    fn names<'t>(text: &'t str, prefix: &'t str) -> impl Iterator<Item = &'t str> {
        text.match_indices(prefix).map(move |(at, _)| {
            let rest = &text[at + prefix.len()..];
            &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())]
        })
    }

    /// No circle between the rooms.
    #[test]
    fn rooms_use_those_above_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        if !root.is_dir() {
            return println!("skipped: the sources are not here");
        }
        let mut files = Vec::new();
        sources(&root, &mut files);
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            let path = file.strip_prefix(&root).unwrap().with_extension("");
            let room = path.components().next().unwrap().as_os_str().to_str().unwrap();
            let place = ROOMS.iter().position(|name| *name == room);
            assert!(place.is_some() || room == "lib", "{room} has no place in the list");
            let is_top = path.parent() == Some(Path::new("")) || path.ends_with("mod");
            let used = names(&code, "crate::").chain(names(&code, "super::").filter(|_| is_top));
            for used in used {
                if let (Some(at), Some(place)) = (ROOMS.iter().position(|name| *name == used), place) {
                    assert!(at <= place, "{} uses {used}, which is below", file.display());
                }
            }
        }
    }
}
