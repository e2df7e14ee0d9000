//! The two ends of a stream: where it is read, and where it is written if it is a copy.
//!
//! A direct copy goes into room that has been allocated before, as a program would do it that knows the size: so its writes need not
//! wait for each other, which those that extend a file do. It is written in whole blocks, which is all that direct I/O takes, and
//! cut to its size in the end. Every copy ends with `fdatasync(2)`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::queue::Files;
use crate::meter::{Round, Tally};
use crate::work::Stream;

pub(super) struct Ends {
    from: File,
    to: Option<File>,
    size: u64,
    /// What direct writes take; `None` through the page cache.
    whole: Option<u64>,
}

impl Ends {
    pub(super) fn open(job: &Stream<'_>, direct: bool) -> io::Result<Self> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let from = OpenOptions::new().read(true).custom_flags(flags).open(job.source)?;
        let to =
            job.destination.map(|path| OpenOptions::new().write(true).custom_flags(flags).open(path)).transpose()?;
        Ok(Self { from, to, size: job.size, whole: direct.then(|| job.blocks() * job.block as u64) })
    }

    /// For a queue. One that only reads never asks for the second.
    pub(super) fn files(&self) -> Files<'_> {
        Files { from: &self.from, to: self.to.as_ref().unwrap_or(&self.from) }
    }

    /// Times `work`, and what it takes to begin and to end a copy.
    pub(super) fn on_the_clock(
        &self,
        round: &mut Round<'_>,
        work: impl FnOnce(&mut Tally<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        round.start();
        if let (Some(to), Some(whole)) = (&self.to, self.whole) {
            allocate(to, whole)?;
        }
        work(&mut round.tally)?;
        if let Some(to) = &self.to {
            if self.whole.is_some() {
                to.set_len(self.size)?;
            }
            to.sync_data()?;
        }
        round.stop();
        Ok(())
    }

    /// Reads the first `len` bytes of `block`, and asks for all of it.
    pub(super) fn read(&self, block: &mut [u8], len: usize, offset: u64) -> io::Result<()> {
        let mut have = 0;
        while have < len {
            match self.from.read_at(&mut block[have..], offset + have as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes the first `len` bytes of `block`, or all of it if only that can be written; nothing if this is no copy.
    pub(super) fn write(&self, block: &[u8], len: usize, offset: u64) -> io::Result<()> {
        let len = if self.whole.is_some() { block.len() } else { len };
        self.to.as_ref().map_or(Ok(()), |to| to.write_all_at(&block[..len], offset))
    }
}

/// Where the file system cannot, the writes allocate.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        other => Ok(other?),
    }
}
