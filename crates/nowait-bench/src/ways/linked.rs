//! `ring-linked`: each writer has a ring, and submits a write and an `fdatasync` that is linked to it with the call that waits for both.
//! Places in the one file are handed out by a counter, so writers do not wait for each other before the kernel makes them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::{IoUring, opcode, squeue, types};

use super::LogWay;
use super::commit::{by_writers, find};
use super::ring::tuned_ring;
use crate::meter::Round;
use crate::work::Commits;

pub struct RingLinked;

impl LogWay for RingLinked {
    fn name(&self) -> &'static str {
        "ring-linked"
    }

    fn refused(&self) -> Option<String> {
        IoUring::new(2).err().map(|error| format!("io_uring_setup: {error}"))
    }

    fn direct(&self) -> bool {
        false
    }

    fn room(&self, size: usize) -> usize {
        size
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<u64> {
        let end = AtomicU64::new(0);
        let places = by_writers(
            job,
            round,
            || Pair::new(job.file),
            |pair, block| {
                let place = end.fetch_add(job.size as u64, Ordering::Relaxed);
                pair.commit(&block[..job.size], place)?;
                Ok(place)
            },
        )?;
        find(job, round, &places)?;
        Ok(end.into_inner())
    }
}

/// A ring for one pair of linked requests at a time.
struct Pair {
    ring: IoUring,
}

const FILE: types::Fixed = types::Fixed(0);
const WRITE: u64 = 0;
const SYNC: u64 = 1;

impl Pair {
    fn new(file: &File) -> io::Result<Self> {
        let ring = tuned_ring(2)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Self { ring })
    }

    fn commit(&mut self, record: &[u8], offset: u64) -> io::Result<()> {
        let write = opcode::Write::new(FILE, record.as_ptr(), record.len() as u32).offset(offset).build();
        let write = write.flags(squeue::Flags::IO_LINK).user_data(WRITE);
        let sync = opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build().user_data(SYNC);
        // SAFETY: `record` is borrowed until this returns, which is after both completions; the file is registered.
        unsafe { self.ring.submission().push_multiple(&[write, sync]) }.expect("the ring is empty between two commits");
        let mut results = [None; 2];
        while results.contains(&None) {
            match self.ring.submit_and_wait(results.iter().filter(|result| result.is_none()).count()) {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                    // The record is the caller's: it cannot be leaked, and to return would be unsound.
                    process::abort();
                }
                _ => {}
            }
            for entry in self.ring.completion() {
                results[entry.user_data() as usize] = Some(entry.result());
            }
        }
        match results {
            [Some(written), Some(0)] if written == record.len() as i32 => Ok(()),
            // The second only says that the first has failed.
            [Some(error), _] if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            [_, Some(error)] if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}
