//! The second pass of a blocking caller: advice announces to the kernel a bounded number of reads
//! ahead of the plain reads that collect them.
//!
//! `POSIX_FADV_WILLNEED` starts a read and does not wait for it (`posix_fadvise(2)`). The device
//! sees the same depth as with a queue, and nothing is allocated, queued or woken: a sixth less
//! processor time than a ring's. It needs no io_uring. It serves files that are read through the
//! page cache; direct I/O goes by the queue.

use std::collections::VecDeque;

use crate::sys::{Advice, Errno};

use super::{Exceptions, Extent, Found, Options};
use crate::error::ErrorOp;
use crate::file::File;
use crate::op::Request;
use crate::stats::Count;

/// Most bytes of one advice. The kernel cuts an advice to the device's read-ahead, 128 KiB by
/// default, or its largest request (`force_page_cache_ra` in mm/readahead.c, 4.10 to 6.18).
const ADVICE_BYTES_MAX: usize = 128 << 10;

/// A part of a missing range that is read by one call.
struct AdvisedPiece {
    offset: u64,
    length: usize,
    /// Place in the output.
    start: usize,
    /// Number in `Found::misses`.
    miss: usize,
}

/// How far a missing range has come.
#[derive(Clone, Copy)]
struct RangeProgress {
    /// Bytes from the start of the range that have arrived, up to the end of the file.
    there: usize,
    error: Option<Errno>,
}

/// Reads the ranges that the first pass left over.
pub(super) fn read(file: &File, ranges: &[Extent], output: &mut [u8], found: Found, options: Options) -> Exceptions {
    let Found { misses, mut exceptions } = found;
    let mut pieces = Vec::with_capacity(misses.len());
    for (number, miss) in misses.iter().enumerate() {
        let (offset, length) = ranges[miss.index];
        for at in (miss.done..length).step_by(ADVICE_BYTES_MAX) {
            let length = (length - at).min(ADVICE_BYTES_MAX);
            pieces.push(AdvisedPiece { offset: offset + at as u64, length, start: miss.start + at, miss: number });
        }
    }
    if !pieces.is_sorted_by_key(|piece| piece.offset) {
        pieces.sort_unstable_by_key(|piece| piece.offset);
    }
    let mut progress: Vec<RangeProgress> =
        misses.iter().map(|miss| RangeProgress { there: ranges[miss.index].1, error: None }).collect();
    let mut ahead = AdviceAhead { file, options, pieces: &pieces, next: 0, under_way: VecDeque::new() };
    for (number, piece) in pieces.iter().enumerate() {
        // A single read would only wait for its own advice.
        if pieces.len() > 1 && options.depth > 1 {
            ahead.keep_up(number);
        }
        let slice = &mut output[piece.start..piece.start + piece.length];
        let result = file.target().read_blocking(slice, piece.offset);
        file.instance.counters.add(if result.is_ok() { Count::Blocking } else { Count::FailedAtOnce });
        let n = *result.as_ref().unwrap_or(&0);
        let progress = &mut progress[piece.miss];
        progress.error = progress.error.or(result.err());
        if n < piece.length {
            slice[n..].fill(0);
            progress.there = progress.there.min(piece.start - misses[piece.miss].start + n);
        }
    }
    for (miss, RangeProgress { there, error }) in misses.iter().zip(progress) {
        let (offset, length) = ranges[miss.index];
        if let Some(errno) = error {
            output[miss.start..miss.start + length].fill(0);
            let error =
                file.open.error(ErrorOp::Gather, errno).with_index(miss.index).with_range(offset, length as u64);
            exceptions.errors.push(error);
        } else if there < length {
            exceptions.short.push((miss.index, there));
        }
    }
    exceptions.sorted()
}

/// Tells the kernel what comes next.
struct AdviceAhead<'a> {
    file: &'a File,
    options: Options,
    /// By place in the file.
    pieces: &'a [AdvisedPiece],
    /// First range that was not announced.
    next: usize,
    /// For each advice that is not used up, the last piece of it.
    under_way: VecDeque<usize>,
}

impl AdviceAhead<'_> {
    /// Keeps `depth` advices under way; piece `number` is read next.
    fn keep_up(&mut self, number: usize) {
        while self.under_way.front().is_some_and(|last| *last < number) {
            self.under_way.pop_front();
        }
        while self.under_way.len() < self.options.depth && self.next < self.pieces.len() {
            self.advise();
        }
    }

    /// Gives one advice: for the next piece, and those that follow it closely.
    fn advise(&mut self) {
        let first = &self.pieces[self.next];
        let (mut end, mut wanted) = (first.offset + first.length as u64, first.length);
        self.next += 1;
        while let Some(piece) = self.pieces.get(self.next) {
            let new = (piece.offset + piece.length as u64).saturating_sub(end.max(piece.offset)) as usize;
            let total = (end.max(piece.offset + piece.length as u64) - first.offset) as usize;
            let close = piece.offset.saturating_sub(end) <= self.options.gap;
            if !close || total > ADVICE_BYTES_MAX || !self.options.worth_it(wanted + new, total) {
                break;
            }
            end = first.offset + total as u64;
            wanted += new;
            self.next += 1;
        }
        // An error of advice is ignored: the read that follows returns its own.
        let advice = Request::Advise { offset: first.offset, length: end - first.offset, advice: Advice::WillNeed };
        let _ = self.file.target().run(advice);
        self.under_way.push_back(self.next - 1);
    }
}
