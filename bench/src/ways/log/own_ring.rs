//! io_uring without a leader: each writer has a ring of its own, and one call submits its commit
//! and waits for it. Places in the one file are handed out by a counter.
//!
//! `ring-linked`: a write through the page cache and an `fdatasync` that is linked to it. The
//! kernel gives both to its workers. `ring-dsync`: one write of whole blocks past the page cache,
//! with `RWF_DSYNC`. It needs no such worker; the flush after it is asked for by a thread of the
//! kernel's own (fs/iomap/direct-io.c, `s_dio_done_wq`), whose time is in nobody's figures.
//!
//! With 64 writers the second was five times as fast. (Also tried: both requests of `ring-linked`
//! past the page cache, in between; and its write given to a worker at once, `IOSQE_ASYNC`, level
//! with it.)

use std::array;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::{IoUring, opcode, squeue, types};

use super::commit::{BLOCK, by_writers, find, open_direct};
use crate::measure::meter::Round;
use crate::measure::work::Commits;
use crate::ways::read::ring::{refused, tuned_ring};
use crate::ways::{Does, LogWay, Way};

pub(crate) struct OwnRing {
    direct: bool,
}

pub(crate) static RING_LINKED: Way = Way::new(
    "ring-linked",
    "each writer: a ring of its own, a write and an fdatasync linked to it",
    &[Does::Commits(&OwnRing { direct: false })],
)
.hue(4)
.refused(refused);

pub(crate) static RING_DSYNC: Way = Way::new(
    "ring-dsync",
    "each writer: a ring of its own, whole blocks with RWF_DSYNC past the page cache",
    &[Does::Commits(&OwnRing { direct: true })],
)
.hue(5)
.refused(refused);

impl LogWay for OwnRing {
    fn direct(&self) -> bool {
        self.direct
    }

    fn room(&self, size: usize) -> usize {
        if self.direct { size.next_multiple_of(BLOCK) } else { size }
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let direct = self.direct.then(|| open_direct(job.path)).transpose()?;
        let file = direct.as_ref().unwrap_or(job.file);
        let room = self.room(job.size);
        let end = AtomicU64::new(0);
        let places = by_writers(
            job,
            round,
            || Ring::new(file),
            |ring, block| {
                let place = end.fetch_add(room as u64, Ordering::Relaxed);
                let bytes = &block[..room];
                if self.direct {
                    ring.write_durable(bytes, place)?
                } else {
                    ring.write_and_sync(bytes, place)?
                }
                Ok(place)
            },
        )?;
        find(job, round, &places)?;
        Ok(Some(end.into_inner()))
    }
}

/// The ring of one writer, empty between two commits.
struct Ring(IoUring);

const FILE: types::Fixed = types::Fixed(0);

impl Ring {
    fn new(file: &File) -> io::Result<Self> {
        let ring = tuned_ring(2)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Self(ring))
    }

    fn write_and_sync(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let write = opcode::Write::new(FILE, bytes.as_ptr(), bytes.len() as u32).offset(offset).build();
        let sync = opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: `bytes` is borrowed until this returns.
        let [write, sync] = unsafe { self.complete([write.flags(squeue::Flags::IO_LINK), sync]) };
        // First: where it failed or was short, the other's answer is that it was cancelled.
        whole(write, bytes)?;
        if sync < 0 { Err(io::Error::from_raw_os_error(-sync)) } else { Ok(()) }
    }

    fn write_durable(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let write = opcode::Write::new(FILE, bytes.as_ptr(), bytes.len() as u32).offset(offset);
        // SAFETY: `bytes` is borrowed until this returns.
        let [write] = unsafe { self.complete([write.rw_flags(libc::RWF_DSYNC).build()]) };
        whole(write, bytes)
    }

    /// Submits these and waits until all are complete; their results.
    ///
    /// # Safety
    ///
    /// The memory that the entries name stays as it is until this returns.
    unsafe fn complete<const N: usize>(&mut self, entries: [squeue::Entry; N]) -> [i32; N] {
        let mut tag = 0..;
        let entries = entries.map(|entry| entry.user_data(tag.next().unwrap_or(0)));
        // SAFETY: the caller's promise, and nothing is in flight any more when this returns. The
        // file is registered.
        let pushed = unsafe { self.0.submission().push_multiple(&entries) };
        pushed.expect("the ring is empty between two commits");
        let mut results = [None; N];
        loop {
            let missing = results.iter().filter(|result| result.is_none()).count();
            if missing == 0 {
                return array::from_fn(|entry| results[entry].unwrap_or(0));
            }
            match self.0.submit_and_wait(missing) {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                    // The record is the caller's: it cannot be leaked, and to return would be
                    // unsound.
                    process::abort();
                }
                _ => {}
            }
            for entry in self.0.completion() {
                results[entry.user_data() as usize] = Some(entry.result());
            }
        }
    }
}

/// Checks a write: an error, or fewer bytes than asked for, which nothing but a full disk or a
/// limit explains.
fn whole(result: i32, bytes: &[u8]) -> io::Result<()> {
    match result {
        error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
        count if count as usize == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
