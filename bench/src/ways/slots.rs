//! A ring whose requests go in short chains, each in a slot with a buffer of its own: small files
//! that are opened, read and closed, reads of many files, and durable writes beside reads.
//!
//! Set up and submitted as the way `ring` is ([`super::read::ring`]): owned by one thread,
//! completions run at its next system call, the first chain after a wait goes alone, and each
//! submission that follows carries twice as many and one more.

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::process;
use std::time::Instant;

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};

use super::read::ring::tuned_ring;
use crate::measure::meter::{Round, Tally};
use crate::measure::work::Buffer;

/// The longest chain: open, read, close.
const CHAIN: usize = 3;
const STEP_BITS: u32 = 2;

pub(in crate::ways) struct Slots<'p> {
    ring: IoUring,
    /// One for all slots.
    memory: Buffer,
    block: usize,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Requests that the ring knows of, or has queued.
    in_flight: usize,
    /// Queued chains, and the most in a submission.
    queued: usize,
    submit_at: usize,
    /// Paths outlive the ring.
    paths: PhantomData<&'p CStr>,
}

#[derive(Clone, Copy)]
struct Slot {
    work: Work,
    /// Requests of its chain that are not complete.
    left: usize,
    results: [i32; CHAIN],
}

#[derive(Clone, Copy)]
enum Work {
    /// The buffer is the caller's.
    Nothing,
    /// A file, from its start to its end.
    Whole,
    Read {
        file: u32,
        offset: u64,
        want: usize,
        have: usize,
    },
    Write {
        len: usize,
    },
}

/// Durable writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::ways) enum Durable {
    /// One request (`RWF_DSYNC`).
    Dsync,
    /// An `fdatasync` linked to the write.
    Linked,
}

impl<'p> Slots<'p> {
    /// `count` slots with a buffer of `block` bytes each, over these open files, which outlive it.
    pub(in crate::ways) fn over<F: AsRawFd>(files: &'p [F], count: usize, block: usize) -> io::Result<Self> {
        let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        Self::new(&files, count, block)
    }

    /// The same for files that are opened by name: each slot has a place for one.
    pub(in crate::ways) fn by_name(count: usize, block: usize) -> io::Result<Self> {
        Self::new(&vec![-1; count], count, block)
    }

    fn new(files: &[RawFd], count: usize, block: usize) -> io::Result<Self> {
        let ring = tuned_ring((count * CHAIN) as u32)?;
        ring.submitter().register_files(files)?;
        let slot = Slot { work: Work::Nothing, left: 0, results: [0; CHAIN] };
        Ok(Self {
            ring,
            memory: Buffer::new(count * block),
            block,
            slots: vec![slot; count],
            free: (0..count).rev().collect(),
            in_flight: 0,
            queued: 0,
            submit_at: 1,
            paths: PhantomData,
        })
    }

    /// A slot with nothing in flight, until it is given [back](Self::put).
    pub(in crate::ways) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub(in crate::ways) fn put(&mut self, slot: usize) {
        self.free.push(slot);
    }

    pub(in crate::ways) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// The buffer of a slot with nothing in flight.
    pub(in crate::ways) fn bytes(&mut self, slot: usize) -> &mut [u8] {
        assert_eq!(self.slots[slot].left, 0, "the kernel has this buffer");
        &mut self.memory.bytes()[slot * self.block..][..self.block]
    }

    /// Opens the file at `path`, reads it to its end, and closes it. It is shorter than a buffer.
    pub(in crate::ways) fn read_whole(&mut self, slot: usize, path: &'p CStr) -> io::Result<()> {
        let (at, len, place) = (self.bytes(slot).as_mut_ptr(), self.block as u32, slot as u32);
        let file = types::Fixed(place);
        let destination =
            types::DestinationSlot::try_from_slot_target(place).map_err(|_| io::ErrorKind::InvalidInput)?;
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr())
            .flags(libc::O_RDONLY)
            .file_index(Some(destination))
            .build();
        let read = opcode::Read::new(file, at, len).offset(0).build();
        let close = opcode::Close::new(file).build();
        // The read is shorter than its buffer, which breaks a soft link.
        self.start(slot, Work::Whole, [open.flags(Flags::IO_LINK), read.flags(Flags::IO_HARDLINK), close])
    }

    /// Reads `len` bytes of a file by its number.
    pub(in crate::ways) fn read(&mut self, slot: usize, file: u32, offset: u64, len: usize) -> io::Result<()> {
        let work = Work::Read { file, offset, want: len, have: 0 };
        let at = self.bytes(slot)[..len].as_mut_ptr();
        let read = opcode::Read::new(types::Fixed(file), at, len as u32).offset(offset).build();
        self.start(slot, work, [read])
    }

    /// Writes the first `len` bytes of the slot's buffer. Complete when they are on stable storage.
    pub(in crate::ways) fn write(
        &mut self,
        slot: usize,
        (file, offset): (u32, u64),
        len: usize,
        durable: Durable,
    ) -> io::Result<()> {
        let (at, file) = (self.bytes(slot)[..len].as_ptr(), types::Fixed(file));
        let write = opcode::Write::new(file, at, len as u32).offset(offset);
        match durable {
            Durable::Dsync => self.start(slot, Work::Write { len }, [write.rw_flags(libc::RWF_DSYNC).build()]),
            Durable::Linked => {
                let sync = opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build();
                self.start(slot, Work::Write { len }, [write.build().flags(Flags::IO_LINK), sync])
            }
        }
    }

    /// Keeps every slot at work. `start` begins the work of an index in a slot, and says what it
    /// is; nothing after the last. `done` is told of each with its bytes, and when its completion
    /// was seen.
    pub(in crate::ways) fn keep_busy<W: Copy>(
        &mut self,
        round: &mut Round<'_>,
        start: impl Fn(&mut Self, usize, usize) -> io::Result<Option<W>>,
        mut done: impl FnMut(W, &[u8], Instant, &mut Tally<'_>),
    ) -> io::Result<()> {
        let mut works: Vec<Option<W>> = vec![None; self.slots.len()];
        let mut index = 0;
        round.start();
        loop {
            while let Some(slot) = self.take() {
                works[slot] = start(self, slot, index)?;
                if works[slot].is_none() {
                    self.put(slot);
                    break;
                }
                index += 1;
            }
            if self.is_idle() {
                break;
            }
            self.turn()?;
            let now = Instant::now();
            while let Some((slot, len)) = self.next()? {
                if let Some(work) = works[slot].take() {
                    done(work, &self.bytes(slot)[..len], now, &mut round.tally);
                }
                self.put(slot);
            }
        }
        round.stop();
        Ok(())
    }

    /// Queues a chain, whose memory is the slot's buffer, and paths that outlive the ring.
    fn start<const N: usize>(&mut self, slot: usize, work: Work, chain: [Entry; N]) -> io::Result<()> {
        if self.queued == self.submit_at {
            // Only now that there is one more: the last ones are left to the call that waits.
            self.submit();
        }
        let mut step = 0;
        let chain = chain.map(|entry| {
            step += 1;
            entry.user_data((slot as u64) << STEP_BITS | (step - 1))
        });
        // SAFETY: the entries name files of the ring's own table, which are open or a slot's; paths
        // that live for 'p, and so longer than this; and the slot's buffer, which is part of
        // `memory`, is lent to nobody while `left` is not 0 (`bytes`), and is not freed before
        // `drop` has seen the last completion.
        let pushed = unsafe { self.ring.submission().push_multiple(&chain) };
        pushed.map_err(|_| io::Error::other("the ring has no room for a chain of each slot"))?;
        self.slots[slot] = Slot { work, left: N, results: [0; CHAIN] };
        self.in_flight += N;
        self.queued += 1;
        Ok(())
    }

    /// Submits what is queued. What a failed call leaves queued goes with the next one.
    fn submit(&mut self) {
        let _ = self.ring.submit();
        self.submit_at = (self.submit_at * 2 + 1).min(self.slots.len());
        self.queued = 0;
    }

    /// Submits what is queued and waits for a completion.
    pub(in crate::ways) fn turn(&mut self) -> io::Result<()> {
        (self.queued, self.submit_at) = (0, 1);
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next chain that is complete: its slot, which is the caller's again, and the bytes that
    /// were moved. A read that stopped half-way is sent on.
    pub(in crate::ways) fn next(&mut self) -> io::Result<Option<(usize, usize)>> {
        loop {
            let Some((slot, results)) = self.landed() else { return Ok(None) };
            let work = std::mem::replace(&mut self.slots[slot].work, Work::Nothing);
            // The first that failed: those behind it were cancelled.
            if let Some(error) = results.iter().find(|&&result| result < 0) {
                return Err(io::Error::from_raw_os_error(-error));
            }
            let count = results.map(|result| result as usize);
            match work {
                Work::Nothing => {}
                Work::Whole if count[1] == self.block => {
                    return Err(io::Error::other("the file is longer than it was to be"));
                }
                Work::Whole => return Ok(Some((slot, count[1]))),
                Work::Write { len } if count[0] == len => return Ok(Some((slot, len))),
                Work::Write { .. } => return Err(io::ErrorKind::WriteZero.into()),
                Work::Read { .. } if count[0] == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Work::Read { want, have, .. } if have + count[0] >= want => return Ok(Some((slot, want))),
                Work::Read { file, offset, want, have } => {
                    let have = have + count[0];
                    let at = self.bytes(slot)[have..want].as_mut_ptr();
                    let (left, place) = ((want - have) as u32, offset + have as u64);
                    let rest = opcode::Read::new(types::Fixed(file), at, left).offset(place).build();
                    self.start(slot, Work::Read { file, offset, want, have }, [rest])?;
                }
            }
        }
    }

    /// The next slot whose whole chain is complete, and its results.
    fn landed(&mut self) -> Option<(usize, [i32; CHAIN])> {
        loop {
            let entry = self.ring.completion().next()?;
            let (slot, step) = ((entry.user_data() >> STEP_BITS) as usize, entry.user_data() & ((1 << STEP_BITS) - 1));
            self.in_flight -= 1;
            let chain = &mut self.slots[slot];
            chain.results[step as usize] = entry.result();
            chain.left -= 1;
            if chain.left == 0 {
                return Some((slot, chain.results));
            }
        }
    }
}

impl Drop for Slots<'_> {
    /// After an error: waits for the rest, because the kernel still uses the buffers.
    fn drop(&mut self) {
        loop {
            while self.landed().is_some() {}
            if self.in_flight == 0 {
                return;
            }
            if self.turn().is_err() {
                // The memory is about to be freed, and the kernel may write to it.
                process::abort();
            }
        }
    }
}

/// Why this kernel refuses a ring of this kind: files opened into it are of Linux 5.15, and used in
/// the same chain of 5.19.
pub(in crate::ways) fn refused_by_name() -> Option<String> {
    // A file of any length, read in part, will do.
    const FILE: &CStr = c"/proc/self/status";
    let read = || {
        let mut slots = Slots::by_name(1, 64 << 10)?;
        let Some(slot) = slots.take() else { return Ok(()) };
        slots.read_whole(slot, FILE)?;
        while !slots.is_idle() {
            slots.turn()?;
            slots.next()?;
        }
        Ok(())
    };
    read().err().map(|error: io::Error| format!("io_uring: open, read and close in one chain: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// What comes of the one chain in flight.
    fn done(slots: &mut Slots<'_>) -> io::Result<(usize, usize)> {
        loop {
            slots.turn()?;
            if let Some(done) = slots.next()? {
                return Ok(done);
            }
        }
    }

    fn available() -> bool {
        let refused = refused_by_name();
        refused.iter().for_each(|why| eprintln!("skipped: {why}"));
        refused.is_none()
    }

    #[test]
    fn a_file_that_is_not_there_is_its_own_error_and_the_next_is_read() {
        if !available() {
            return;
        }
        let mut slots = Slots::by_name(2, 8 << 20).unwrap();
        let (first, second) = (slots.take().unwrap(), slots.take().unwrap());
        slots.read_whole(first, c"/nothing/of/this/name").unwrap();
        assert_eq!(done(&mut slots).unwrap_err().kind(), io::ErrorKind::NotFound);
        slots.read_whole(second, c"/proc/self/status").unwrap();
        let (slot, len) = done(&mut slots).unwrap();
        assert_eq!(slot, second);
        assert!(slots.bytes(slot)[..len].starts_with(b"Name:"));
    }

    #[test]
    fn ends_and_refusals_are_errors_and_dropping_waits() {
        let file = File::open(env!("CARGO_MANIFEST_DIR").to_owned() + "/Cargo.toml").unwrap();
        let files = [file];
        let Ok(mut slots) = Slots::over(&files, 4, 4096) else { return eprintln!("skipped: no io_uring") };
        let len = files[0].metadata().unwrap().len();
        let all: Vec<usize> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(all.len(), 4);
        slots.read(all[0], 0, 0, 100).unwrap();
        let (slot, read) = done(&mut slots).unwrap();
        let mut expected = [0; 100];
        files[0].read_exact_at(&mut expected, 0).unwrap();
        assert_eq!((read, &slots.bytes(slot)[..100]), (100, &expected[..]));
        // Half of it is behind the end.
        slots.read(all[1], 0, len - 10, 20).unwrap();
        assert_eq!(done(&mut slots).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // It was opened for reading.
        for durable in [Durable::Dsync, Durable::Linked] {
            slots.write(all[2], (0, 0), 512, durable).unwrap();
            assert_eq!(done(&mut slots).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
        slots.read(all[3], 0, 0, 100).unwrap();
    }
}
