//! The second pass of a future, and of direct I/O: missing ranges are sorted by place in the file,
//! neighbours are merged into scattered reads, and a bounded number of reads is kept in flight
//! until the end. A merged read that fails is split again, so that an error belongs to the ranges
//! that it hits and to no other.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Exceptions, Extent, Found, Options, REQUEST_BYTES_MAX, Take};
use crate::buf::{Memory, Part};
use crate::error::ErrorOp;
use crate::file::File;
use crate::op::{Batch, Notify, Outcome, Request, Slot, Transfer};
use crate::sys::{Errno, SEGMENTS_MAX};
use crate::turn;

/// The ranges that have to wait for the device.
pub(super) struct Slow {
    options: Options,
    /// The smallest unit that the device moves; 1 through the page cache.
    block: u64,
    /// Pieces still to read, by place in the file, from the back.
    pieces: Vec<ReadPiece>,
    /// Each range that missed.
    ranges: Vec<WaitingRange>,
    in_flight: Vec<Option<Flight>>,
    free: Vec<usize>,
    batch: Arc<Batch>,
    finished: Vec<usize>,
    exceptions: Exceptions,
    /// The end of the output, of no bytes: the part that is left when all others are back.
    rest: Part,
}

/// A part of a range that is read by one request.
struct ReadPiece {
    offset: u64,
    part: Part,
    /// Number in `Slow::ranges`.
    waiting: usize,
    /// Place in its range.
    at: usize,
    /// To be read alone: it was part of a merged read that failed.
    alone: bool,
}

/// A range with outstanding pieces.
struct WaitingRange {
    index: usize,
    extent: Extent,
    outstanding: usize,
    /// Parts that are back, in order of place in the range when `outstanding` is zero.
    parts: Vec<(usize, Part)>,
    /// Bytes from the start of the range that have arrived, up to the end of the file.
    there: usize,
    error: Option<Errno>,
}

/// A request in flight. The parts that it fills travel with the request; `segments` describes them.
struct Flight {
    slot: SubmittedRead,
    offset: u64,
    segments: Layout,
}

/// A slot that is abandoned if this is dropped before its result is taken: the gather was dropped
/// half-way.
struct SubmittedRead(Option<Arc<Slot>>);

impl SubmittedRead {
    fn take(mut self) -> Option<(Outcome, Request)> {
        self.0.take()?.take()
    }
}

impl Drop for SubmittedRead {
    fn drop(&mut self) {
        if let Some(slot) = &self.0 {
            slot.abandon();
        }
    }
}

enum Layout {
    /// One piece, which is the usual case.
    One { waiting: usize, at: usize },
    /// Several, in order of place in the file: the pieces with a part of their own, the gaps
    /// between them, and those that lie in others' parts, to be copied from there.
    Merged { read: Vec<Segment>, copied: Vec<ReadPiece> },
}

struct Segment {
    offset: u64,
    /// None: a gap.
    owner: Option<(usize, usize)>,
}

impl Slow {
    pub(super) fn new(file: &File, extents: &[Extent], mut output: Part, found: Found, options: Options) -> Slow {
        let mut ranges = Vec::with_capacity(found.misses.len());
        let mut pieces = Vec::with_capacity(found.misses.len());
        let mut position = 0;
        for miss in found.misses {
            let extent = extents[miss.index];
            drop(output.split_to(miss.start - position));
            position = miss.start + extent.1;
            let mut part = output.split_to(extent.1);
            let waiting = ranges.len();
            let mut range = WaitingRange {
                index: miss.index,
                extent,
                outstanding: 0,
                parts: Vec::new(),
                there: extent.1,
                error: None,
            };
            if miss.done > 0 {
                range.parts.push((0, part.split_to(miss.done)));
            }
            let mut at = miss.done;
            while !part.is_empty() {
                let part = part.split_to(part.len().min(REQUEST_BYTES_MAX));
                let length = part.len();
                pieces.push(ReadPiece { offset: extent.0 + at as u64, part, waiting, at, alone: false });
                range.outstanding += 1;
                at += length;
            }
            ranges.push(range);
        }
        drop(output.split_to(output.len()));
        // From the back, since they are taken from there.
        if !pieces.is_sorted_by(|a, b| a.offset >= b.offset) {
            pieces.sort_unstable_by_key(|piece| std::cmp::Reverse(piece.offset));
        }
        let depth = options.depth.min(pieces.len());
        Slow {
            options,
            block: file.open.direct.as_ref().map_or(1, |direct| u64::from(direct.alignment().offset)),
            pieces,
            ranges,
            in_flight: (0..depth).map(|_| None).collect(),
            free: (0..depth).collect(),
            batch: Arc::default(),
            finished: Vec::new(),
            exceptions: found.exceptions,
            rest: output,
        }
    }

    /// Keeps as many reads in flight as allowed. Ready when all ranges are settled.
    pub(super) fn poll(
        &mut self,
        file: &File,
        context: &mut Context<'_>,
        limit: usize,
        take: &mut dyn Take,
    ) -> Poll<()> {
        let mut moved = 0;
        loop {
            // A read that is cached after all is copied during its submission.
            while moved < limit {
                let Some(place) = self.free.pop() else { break };
                match self.submit(file, place) {
                    Some(bytes) => {
                        moved += bytes;
                        // A caller that blocks has no turns.
                        if limit < usize::MAX && turn::ends(context) {
                            return Poll::Pending;
                        }
                    }
                    None => {
                        self.free.push(place);
                        break;
                    }
                }
            }
            if self.free.len() == self.in_flight.len() && self.pieces.is_empty() {
                return Poll::Ready(());
            }
            if moved >= limit {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut finished = std::mem::take(&mut self.finished);
            std::task::ready!(self.batch.poll(context, &mut finished));
            turn::runs(finished.len());
            for place in finished.drain(..) {
                moved += self.complete(file, place, take);
            }
            self.finished = finished;
        }
    }

    pub(super) fn finish(self) -> (Part, Exceptions) {
        (self.rest, self.exceptions.sorted())
    }

    /// Submits the next request. Returns the bytes that it asks for; none if no piece is left.
    fn submit(&mut self, file: &File, place: usize) -> Option<usize> {
        let piece = self.pieces.pop()?;
        let offset = piece.offset;
        let (memory, segments) = match self.follows(&piece) {
            true => self.merge(piece),
            false => {
                let segments = Layout::One { waiting: piece.waiting, at: piece.at };
                (Memory::Part(piece.part), segments)
            }
        };
        turn::called(0);
        let transfer = Transfer::new(memory, offset);
        let bytes = transfer.left();
        let request = Request::Read(transfer);
        let slot = file.target().submit(request, Notify::Batch(self.batch.clone(), place), None);
        self.in_flight[place] = Some(Flight { slot: SubmittedRead(Some(slot)), offset, segments });
        Some(bytes)
    }

    /// The next piece is to be read together with this one.
    fn follows(&self, piece: &ReadPiece) -> bool {
        let end = piece.offset + piece.part.len() as u64;
        self.pieces.last().is_some_and(|next| {
            let gap = next.offset.saturating_sub(end);
            let (wanted, total) =
                (piece.part.len() + next.part.len(), piece.part.len() + next.part.len() + gap as usize);
            !piece.alone && !next.alone && self.fits(end, next.offset, wanted, total)
        })
    }

    /// True if a piece that begins at `next` is read together with one that ends at `end`. If it is
    /// in the same block or the next, it costs the device nothing.
    fn fits(&self, end: u64, next: u64, wanted: usize, total: usize) -> bool {
        // A power of two.
        let in_block = self.block - 1;
        let touches = next & !in_block <= (end + in_block) & !in_block;
        let gap = next.saturating_sub(end);
        let is_worth_it = gap <= self.options.gap && self.options.worth_it(wanted, total);
        total <= REQUEST_BYTES_MAX && (touches || is_worth_it)
    }

    /// Builds one scattered read of `first` and those that follow it closely.
    fn merge(&mut self, first: ReadPiece) -> (Memory, Layout) {
        let begin = first.offset;
        let mut end = begin;
        let mut wanted = 0;
        let (mut memory, mut read, mut copied) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(mut piece) = next.take() {
            let overlap = end.saturating_sub(piece.offset).min(piece.part.len() as u64) as usize;
            if overlap > 0 {
                // Other pieces already read the first bytes of this one.
                let whole = overlap == piece.part.len();
                let head = piece.part.split_to(overlap);
                copied.push(ReadPiece {
                    offset: piece.offset,
                    part: head,
                    waiting: piece.waiting,
                    at: piece.at,
                    alone: true,
                });
                if whole {
                    next = self.next_mergeable(end, wanted, begin, memory.len());
                    continue;
                }
                self.ranges[piece.waiting].outstanding += 1;
                piece.offset += overlap as u64;
                piece.at += overlap;
            }
            if piece.offset > end {
                memory.push(Memory::Vec(vec![0; (piece.offset - end) as usize]));
                read.push(Segment { offset: end, owner: None });
            }
            wanted += piece.part.len();
            end = piece.offset + piece.part.len() as u64;
            read.push(Segment { offset: piece.offset, owner: Some((piece.waiting, piece.at)) });
            memory.push(Memory::Part(piece.part));
            next = self.next_mergeable(end, wanted, begin, memory.len());
        }
        (Memory::Many(memory), Layout::Merged { read, copied })
    }

    fn next_mergeable(&mut self, end: u64, wanted: usize, begin: u64, segments: usize) -> Option<ReadPiece> {
        let next = self.pieces.last()?;
        let gap = next.offset.saturating_sub(end);
        let new = (next.offset + next.part.len() as u64).saturating_sub(end.max(next.offset)) as usize;
        let total = (end - begin) as usize + gap as usize + new;
        let merges = !next.alone && segments + 2 <= SEGMENTS_MAX;
        if merges && self.fits(end, next.offset, wanted + new, total) { self.pieces.pop() } else { None }
    }

    /// Settles one finished request; returns the number of bytes that it moved.
    fn complete(&mut self, file: &File, place: usize, take: &mut dyn Take) -> usize {
        let Some(flight) = self.in_flight[place].take() else { return 0 };
        let Some((outcome, request)) = flight.slot.take() else { unreachable!("it said that it is finished") };
        self.free.push(place);
        let Request::Read(mut transfer) = request else { unreachable!("a gather submits reads") };
        let there = flight.offset + transfer.done() as u64;
        let moved = transfer.done();
        match (flight.segments, transfer.take_memory()) {
            (Layout::One { waiting, at }, Memory::Part(part)) => {
                self.settle(file, waiting, at, flight.offset, part, there, outcome.err(), take);
            }
            (Layout::Merged { read, copied }, Memory::Many(memory)) => {
                self.complete_merged(file, read, copied, memory, there, outcome, take);
            }
            _ => unreachable!("memory comes back as it went"),
        }
        moved
    }

    #[allow(clippy::too_many_arguments)]
    fn complete_merged(
        &mut self,
        file: &File,
        read: Vec<Segment>,
        mut copied: Vec<ReadPiece>,
        memory: Vec<Memory>,
        there: u64,
        outcome: Outcome,
        take: &mut dyn Take,
    ) {
        let parts = |memory: Memory| match memory {
            Memory::Part(part) => Some(part),
            _ => None,
        };
        if outcome.is_err() {
            // Reading each piece alone shows which one failed.
            let read = read.into_iter().zip(memory).filter_map(|(segment, memory)| {
                let ((waiting, at), part) = (segment.owner?, parts(memory)?);
                Some(ReadPiece { offset: segment.offset, part, waiting, at, alone: true })
            });
            self.pieces.extend(read);
            self.pieces.append(&mut copied);
            return;
        }
        for mut piece in copied {
            copy_from(&read, &memory, piece.offset, &mut piece.part);
            self.settle(file, piece.waiting, piece.at, piece.offset, piece.part, there, None, take);
        }
        for (segment, memory) in read.into_iter().zip(memory) {
            if let (Some((waiting, at)), Some(part)) = (segment.owner, parts(memory)) {
                self.settle(file, waiting, at, segment.offset, part, there, None, take);
            }
        }
    }

    /// Takes a piece back, with the file's bytes up to offset `there`. Settles its range if it was
    /// the last one.
    #[allow(clippy::too_many_arguments)]
    fn settle(
        &mut self,
        file: &File,
        waiting: usize,
        at: usize,
        offset: u64,
        mut part: Part,
        there: u64,
        error: Option<Errno>,
        take: &mut dyn Take,
    ) {
        let range = &mut self.ranges[waiting];
        let valid = if error.is_some() { 0 } else { there.saturating_sub(offset).min(part.len() as u64) as usize };
        if valid < part.len() {
            part[valid..].fill(0);
            range.there = range.there.min(at + valid);
        }
        range.error = range.error.or(error);
        range.outstanding -= 1;
        let whole = if range.outstanding == 0 && range.parts.is_empty() {
            part
        } else {
            range.parts.push((at, part));
            if range.outstanding > 0 {
                return;
            }
            let mut parts = std::mem::take(&mut range.parts);
            parts.sort_unstable_by_key(|(at, _)| *at);
            let mut parts = parts.into_iter().map(|(_, part)| part);
            let Some(mut whole) = parts.next() else { unreachable!("one was pushed above") };
            parts.for_each(|next| whole.join(next));
            whole
        };
        if let Some(errno) = range.error {
            let (offset, length) = range.extent;
            let error =
                file.open.error(ErrorOp::Gather, errno).with_index(range.index).with_range(offset, length as u64);
            take.take(range.index, Err(&error));
            self.exceptions.errors.push(error);
        } else {
            if range.there < range.extent.1 {
                self.exceptions.short.push((range.index, range.there));
            }
            take.take(range.index, Ok(&whole[..range.there]));
        }
    }
}

/// Copies bytes from `offset` on, all of which `read` asked for, from where they were read to.
fn copy_from(read: &[Segment], memory: &[Memory], mut offset: u64, to: &mut [u8]) {
    let mut done = 0;
    let mut segment = read.partition_point(|segment| segment.offset <= offset).saturating_sub(1);
    while done < to.len() && segment < read.len() {
        let from: &[u8] = match &memory[segment] {
            Memory::Part(part) => part,
            Memory::Vec(gap) => gap,
            _ => &[],
        };
        let skip = (offset - read[segment].offset) as usize;
        let n = from.len().saturating_sub(skip).min(to.len() - done);
        to[done..done + n].copy_from_slice(&from[skip..skip + n]);
        done += n;
        offset += n as u64;
        segment += 1;
    }
}
