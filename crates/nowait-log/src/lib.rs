//! Durable write-ahead log for many small records: a record is on stable storage when its
//! [`Ticket`] is ready, and is recovered after a crash.
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
//! // Waits until the batch is durable: no crash of process or machine loses it.
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
//! A call that may wait returns a future. Await it on any executor, or call `wait`. Futures of a
//! log do not block their thread.
//!
//! ```
//! # use nowait_log::{Log, Options};
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path().join("log");
//! # nowait::block_on(async {
//! let (log, _) = Log::open(&dir, &Options::new().create(true).segment_bytes(1 << 20)).await?;
//! let ticket = log.append(b"one record").await?; // copied into the log's memory, and numbered
//! ticket.await?; // durable
//! log.close().await
//! # }).unwrap();
//! ```
//!
//! # When a record is durable
//!
//! A record is durable when its ticket is ready; then every earlier record is durable, too. Before
//! that, a crash may keep or lose the record. A crash always keeps a prefix of the appended
//! records, and never splits a batch. Readers return durable records only.
//!
//! The first failed write or sync poisons the log:
//!
//! * records in flight may or may not be on disk
//!   ([`Indeterminate`](nowait::ErrorKind::Indeterminate));
//! * records that were appended but not written are not on disk
//!   ([`Poisoned`](nowait::ErrorKind::Poisoned));
//! * the log acknowledges nothing more; reopen it to continue.
//!
//! A full disk is detected when the next segment is prepared. An append is then refused
//! ([`NoSpace`](nowait::ErrorKind::NoSpace)) before it gets an LSN. On copy-on-write file systems
//! such as btrfs, and on thinly provisioned devices, a later write may still run out of space,
//! which poisons the log.
//!
//! # Who writes
//!
//! * **Blocking callers**: the threads that wait also write. [`Ticket::wait`] writes the pending
//!   records of all threads in one write, and waits for the device in the same system call. Records
//!   appended meanwhile share the next write.
//! * **Futures and callbacks**: the ring or the pool makes the write. The thread that reaps its
//!   completion submits the next one.
//! * **`nowait-log-writer`**: one thread per log, which writes for all of them once 16 wait at a
//!   time. It starts when they first do, and ends when the log is closed. A log
//!   without [`Options::maintenance`] lacks it.
//! * **`nowait-log`**: one thread per log, which prepares segments, and sleeps while the log is
//!   idle.
//! * **Stalled writers**: if the writing thread is stopped or lacks processor time, another waiting
//!   thread or `nowait-log` writes the same block again. The second write begins after 20 ms, or
//!   after four times the slowest recent write.
//! * **`nowait-log-calls`**: one thread per log, which runs callbacks while the log has any.
//!
//! # Directory of a log
//!
//! A log occupies one directory; `docs/log-format.md` in the repository describes the layout. The
//! log holds the directory open, so the directory may be renamed, and the process may change its
//! working directory.
//!
//! [`Log::open`] creates a log only if [`Options::create`] is set, and only in a new or empty
//! directory. Set `create` only when the application is installed. An application that expects its
//! log then gets [`NotFound`](nowait::ErrorKind::NotFound), not an empty log, if the log's volume
//! is not mounted.

#![cfg_attr(docsrs, feature(doc_cfg))]

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
use open::OpenLog;
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
pub use os::{APPEND, RECOVER};
pub use reader::{Next, Reader, Record, Tail};
pub use recover::{Damage, Place, Recovery};
pub use retention::Retention;
pub use sealed::SealedBlock;
pub use stats::{LogStats, Percentiles};
pub use ticket::{Append, Durable, Room, Ticket};
pub use tickets::Tickets;
pub use truncate::{truncate_prefix, truncate_prefix_in};

nowait::waits! {
    impl [T: Send + 'static] Blocking<T>;
    impl [] Append<'_>;
    impl [] Ticket;
    impl [] Tickets;
    impl [] Durable;
    impl [] Room;
    impl ['r] Next<'r>;
    impl ['r] Tail<'r>;
}

/// Log that is open for appending. Clones are handles of the same log; any thread may use any
/// handle.
///
/// When the last handle is dropped, the pending records and a watermark block that covers them are
/// written in the background. [`Log::close`] waits for these writes. A future of a log is a handle,
/// too, unless it borrows one.
#[derive(Clone)]
pub struct Log(Arc<OpenLog>);

impl Log {
    /// Opens the log in `dir` for appending. Creates it if it does not exist and
    /// [`Options::create`] is set. First reads all of the log, or its end: see [`Options::scan`].
    /// [`Log::reader`] reads the records.
    ///
    /// # Errors
    /// * [`ErrorKind::Locked`] if this or another process has the log open;
    /// * [`ErrorKind::Damaged`] if durable data cannot be read: see [`Options::salvage`] and
    ///   [`inspect`];
    /// * [`ErrorKind::NotFound`] if no log exists and `create` is not set;
    /// * [`ErrorKind::InvalidInput`] if a log would be created in a directory with other contents;
    /// * [`ErrorKind::NoSpace`] if the disk is full;
    /// * [`ErrorKind::Unsupported`] for another version of the format;
    /// * those of files.
    pub fn open(dir: impl AsRef<Path>, options: &Options) -> Blocking<(Log, Recovery)> {
        let dir: Arc<Path> = dir.as_ref().into();
        let options = options.clone();
        Blocking::new(ErrorOp::Open, &dir.clone(), move || {
            let (open, recovery) = OpenLog::new(&dir, &options)?;
            Ok((Log(Arc::new(open)), recovery))
        })
    }

    /// Appends a copy of a record; returns a ticket with its LSN. Waits only while
    /// [`Options::pending_bytes_max`] bytes are pending, or the next segment is not ready. The
    /// record is written when a thread or task waits for a ticket, or after some milliseconds.
    ///
    /// # Errors
    /// After an error the record is not in the log. [`ErrorKind::NoSpace`]; [`ErrorKind::Poisoned`]
    /// after a failed write; [`ErrorKind::Closed`]; [`ErrorKind::InvalidInput`] if the record does
    /// not fit into a segment.
    pub fn append<'a>(&'a self, record: &'a [u8]) -> Append<'a> {
        self.appending(Records::One([record.into()]), false)
    }

    /// Appends a record with a kind; [`Log::append`] uses kind 0. The log stores the kind under a
    /// checksum, and does not interpret it. [`Record::kind`] returns it.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_kind<'a>(&'a self, kind: u8, record: &'a [u8]) -> Append<'a> {
        self.appending(Records::One([Entry { kind, bytes: record }]), false)
    }

    /// Appends records as a batch, which a crash keeps as a whole or not at all. Returns the ticket
    /// of the last record. Each record is bytes, or an [`Entry`] with a kind.
    ///
    /// # Errors
    /// As [`Log::append`]; [`ErrorKind::InvalidInput`] for an empty batch.
    pub fn append_batch<'a, R: Into<Entry<'a>>>(&'a self, records: impl IntoIterator<Item = R>) -> Append<'a> {
        self.appending(Records::Batch(records.into_iter().map(Into::into).collect()), false)
    }

    /// Appends a record like [`Log::append`], but may use the reserve ([`Options::reserve_bytes`])
    /// if no other space is free.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_from_reserve<'a>(&'a self, record: &'a [u8]) -> Append<'a> {
        self.appending(Records::One([record.into()]), true)
    }

    /// Appends a record of `bytes` bytes, whose contents `fill` writes. This call invokes `fill`
    /// once, on this thread, with a separate zeroed buffer. `fill` may take long, use the log, or
    /// panic. It delays no other append. If it panics, nothing is appended.
    ///
    /// For large records it is cheaper than [`Log::append`]: other appends do not wait for a copy
    /// of the record. The thread that writes the block copies it, and frees the buffer.
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
    /// As [`Log::append`]. `fill` is not called if the record does not fit into a segment, or if
    /// memory is short.
    pub fn append_with(&self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Append<'_> {
        self.append_kind_with(0, bytes, fill)
    }

    /// Appends a record with a kind, which `fill` writes; see [`Log::append_kind`] and
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

    /// Appends a record as [`Log::append`], but never waits.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if too many bytes are pending, or the next segment is not ready.
    /// The log then begins to make room: await [`Log::room`], and try again. Otherwise as
    /// [`Log::append`].
    pub fn try_append(&self, record: &[u8]) -> Result<Ticket> {
        let shared = &self.0.shared;
        Ok(Ticket::new(shared, shared.append(Incoming::Copied(&[record.into()]), false, false)?))
    }

    /// Waits until a record of `bytes` bytes can be appended without waiting. Await it, or
    /// [`wait`](Room::wait) for it, after [`Log::try_append`] was refused. For a batch, `bytes` is
    /// the sum of the lengths, plus 9 for each record but the first.
    ///
    /// The wait reserves nothing: other appends may use the room, and `try_append` is then refused
    /// again. Meanwhile pending records are written, and the next segment is prepared. Dropping it
    /// has no effect. It keeps the log open, like a clone.
    ///
    /// # Errors
    /// Those of [`Log::append`]: [`ErrorKind::NoSpace`] if the next segment cannot be prepared,
    /// [`ErrorKind::Poisoned`], [`ErrorKind::Closed`], and [`ErrorKind::InvalidInput`] for a record
    /// that never fits.
    pub fn room(&self, bytes: usize) -> Room {
        Room { log: self.0.clone(), payload: bytes.saturating_add(FRAME_BYTES) }
    }

    /// Returns the LSN up to which all records are durable; 0 if none is.
    pub fn durable_lsn(&self) -> u64 {
        self.0.shared.durable()
    }

    /// Returns the LSN of the last appended record; 0 if none was.
    pub fn last_lsn(&self) -> u64 {
        if self.0.shared.is_forked() {
            return self.durable_lsn();
        }
        self.0.shared.state().next_lsn - 1
    }

    /// Waits until record `lsn` is durable; the record need not be appended yet.
    pub fn wait_durable(&self, lsn: u64) -> Durable {
        Durable::new(&self.0.shared, lsn)
    }

    /// Returns a reader of durable records from `lsn` on, also while the log is written.
    /// [`Reader::tail`] waits for later records.
    ///
    /// A reader within a segment begins at a mark shortly before `lsn`: commits and readers leave
    /// one for every 32 KiB of the log. At 768 KiB of memory, every second mark is removed, and
    /// the distance doubles. After the log was opened, the first reader that passes a
    /// part of a segment leaves its marks. To read at many places, move one reader with
    /// [`Reader::seek`].
    pub fn reader(&self, lsn: u64) -> Reader {
        Reader::of_live(self.0.shared.clone(), lsn)
    }

    /// Removes records before `lsn`, by whole segments: a segment that contains only such records
    /// is reused or removed. So some records before `lsn` may remain, also after the log is
    /// reopened. Pinned records ([`Reader::pin`]) are removed after the reader has read them.
    /// [`Options::retain`] sets an automatic rule.
    pub fn truncate_prefix(&self, lsn: u64) {
        self.0.shared.truncate_prefix(lsn);
    }

    /// Removes all records after `lsn`; durable on completion. The next appended record gets LSN
    /// `lsn + 1`. The call first waits until all appended records are durable; new appends wait
    /// meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchRecord`] if the log does not contain `lsn`; [`ErrorKind::NoSpace`], since
    /// the log continues in a new segment; those of writes.
    pub fn truncate_suffix(&self, lsn: u64) -> Blocking<()> {
        let log = self.clone();
        Blocking::new(ErrorOp::SetLen, &self.0.shared.dir.path, move || log.0.shared.truncate_suffix(lsn))
    }

    /// Copies the log to `dest`, also while it is written. `dest` must not exist, or be an empty
    /// directory. Other processes can use [`backup`](backup()). This call pins the records: none is
    /// removed before it is copied, so the log may grow meanwhile. Returns the contents of the
    /// copy, which include every record that was durable at the call.
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
    /// all clones. Later appends through any clone fail. The log can be reopened when this has
    /// completed. Tickets keep their results. After a successful close, recovery never mistakes
    /// damage for a torn tail.
    ///
    /// # Errors
    /// Those of writes; [`ErrorKind::Poisoned`] if the log has failed before;
    /// [`ErrorKind::Closed`] if another handle has closed it.
    pub fn close(self) -> Blocking<()> {
        let path = self.0.shared.dir.path.clone();
        Blocking::new(os::APPEND, &path, move || self.close_here())
    }

    fn close_here(self) -> Result<()> {
        let shared = &self.0.shared;
        if shared.is_forked() {
            return Ok(());
        }
        let Some(last) = shared.begin_closing(true) else {
            return Err(shared.error(os::APPEND, ErrorKind::Closed, "the log is already closed"));
        };
        let result = last.and_then(|group| shared.wait(0, &group).map(drop));
        let result = result.and_then(|()| shared.record_end());
        self.0.end();
        result
    }

    /// Returns the counters since the log was opened.
    pub fn stats(&self) -> LogStats {
        if self.0.shared.is_forked() {
            return LogStats::default();
        }
        self.0.shared.stats()
    }

    /// Returns the strategy by which blocks are made durable.
    pub fn strategy(&self) -> Strategy {
        Strategy::of(&self.0.shared.control)
    }

    /// Returns true if blocks bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.0.shared.control.direct
    }

    /// Returns the directory of the log.
    pub fn path(&self) -> &Path {
        &self.0.shared.dir.path
    }

    /// Performs one maintenance task, for a log without a maintenance thread
    /// ([`Options::maintenance`]). Blocks until it is done; returns false if none was due. A task
    /// is:
    ///
    /// * to prepare the next segment;
    /// * to remove a segment that is no longer needed, or to record the segments in the control
    ///   file;
    /// * to write records for which no caller waits, some milliseconds after they were appended;
    /// * to write a watermark block after the log has become idle.
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

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../../../docs/guide/service.md")]
struct Service;

#[cfg(all(test, not(nowait_log_loom)))]
mod tests {
    use std::path::{Path, PathBuf};

    /// The modules in the order of this crate's ARCHITECTURE.md.
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

    /// Identifiers that follow `prefix` in a text.
    fn names<'t>(text: &'t str, prefix: &'t str) -> impl Iterator<Item = &'t str> {
        text.match_indices(prefix).map(move |(at, _)| {
            let rest = &text[at + prefix.len()..];
            &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())]
        })
    }

    /// Checks that no module uses a later one.
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
