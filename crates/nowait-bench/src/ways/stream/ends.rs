//! The two ends of a stream that is driven by hand: where its bytes come from, and where they are
//! written.
//!
//! Direct writes go into room that has been allocated before, as a program would do it that knows
//! the size: so they need not wait for each other, which those that extend a file do. A copy
//! allocates on the clock, as part of the work. What only writes finds its room allocated and
//! synced when the clock starts: it is the floor for `nowait`, which begins with an empty file and
//! does not know the size. Files are written in whole blocks, which is all that direct I/O takes,
//! and cut to their size in the end. Then comes `fdatasync(2)`, on the clock.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::measure::meter::{Round, Tally};
use crate::measure::work::{Contents, Route, Stream};
use crate::ways::queue::Files;

pub(in crate::ways) struct Ends {
    between: Between,
    size: u64,
    /// Alignment of direct writes; `None` through the page cache.
    whole: Option<u64>,
}

enum Between {
    Read(File),
    Copy { from: File, to: File },
    Write { contents: Contents, to: File },
}

impl Ends {
    pub(in crate::ways) fn open(job: &Stream<'_>, direct: bool) -> io::Result<Self> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let source = |path| OpenOptions::new().read(true).custom_flags(flags).open(path);
        let destination = |path| OpenOptions::new().write(true).custom_flags(flags).open(path);
        let between = match job.route {
            Route::Read { from } => Between::Read(source(from)?),
            Route::Copy { from, to } => Between::Copy { from: source(from)?, to: destination(to)? },
            Route::Write { contents, to } => Between::Write { contents, to: destination(to)? },
        };
        let ends = Self { between, size: job.size, whole: direct.then(|| job.blocks() * job.block as u64) };
        if let (Between::Write { to, .. }, Some(whole)) = (&ends.between, ends.whole) {
            allocate(to, whole)?;
            to.sync_all()?;
        }
        Ok(ends)
    }

    fn to(&self) -> Option<&File> {
        match &self.between {
            Between::Read(_) => None,
            Between::Copy { to, .. } | Between::Write { to, .. } => Some(to),
        }
    }

    /// For a queue.
    pub(in crate::ways) fn files(&self) -> Files<'_> {
        match &self.between {
            Between::Read(file) | Between::Write { to: file, .. } => Files::both(file),
            Between::Copy { from, to } => Files { from, to },
        }
    }

    /// Times `work`, and what it takes to begin a copy and to end what was written.
    pub(in crate::ways) fn on_the_clock(
        &self,
        round: &mut Round<'_>,
        work: impl FnOnce(&mut Tally<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        round.start();
        if let (Between::Copy { to, .. }, Some(whole)) = (&self.between, self.whole) {
            allocate(to, whole)?;
        }
        work(&mut round.tally)?;
        if let Some(to) = self.to() {
            if self.whole.is_some_and(|whole| whole != self.size) {
                to.set_len(self.size)?;
            }
            to.sync_data()?;
        }
        round.stop();
        Ok(())
    }

    /// Makes the block, if it is not to be read.
    pub(in crate::ways) fn make(&self, block: &mut [u8], offset: u64) {
        if let Between::Write { contents, .. } = self.between {
            contents.place(block, offset);
        }
    }

    /// Reads the first `len` bytes of `block`, and asks for all of it; nothing if the block was
    /// made.
    pub(in crate::ways) fn read(&self, block: &mut [u8], len: usize, offset: u64) -> io::Result<()> {
        let (Between::Read(from) | Between::Copy { from, .. }) = &self.between else { return Ok(()) };
        let mut have = 0;
        while have < len {
            match from.read_at(&mut block[have..], offset + have as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes the first `len` bytes of `block`, or all of it if only that can be written; nothing
    /// if this only reads.
    pub(in crate::ways) fn write(&self, block: &[u8], len: usize, offset: u64) -> io::Result<()> {
        let len = if self.whole.is_some() { block.len() } else { len };
        self.to().map_or(Ok(()), |to| to.write_all_at(&block[..len], offset))
    }
}

/// If the file system cannot, the writes allocate.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        other => Ok(other?),
    }
}
