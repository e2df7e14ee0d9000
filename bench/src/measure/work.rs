//! Jobs of a way, as plain data. All ways of a case get the same job.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{Advice, MmapMut};

use crate::machine::testfile::{self, TestFile};
use crate::measure::pace::Pace;
use crate::random::Random;

const PAGE: usize = 4096;

/// The file to read from.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The file, open for reading without readahead.
    pub file: &'a File,
    /// Path for ways that open the file.
    pub path: &'a Path,
    pub size: u64,
    /// True to bypass the page cache.
    pub direct: bool,
}

impl<'a> Target<'a> {
    pub fn of(file: &'a TestFile) -> Self {
        Self { file: file.open(), path: file.path(), size: file.size(), direct: file.is_direct() }
    }
}

/// Reads of one block each, with `depth` in flight until all are complete.
#[derive(Clone, Copy, Debug)]
pub struct Reads<'a> {
    pub target: Target<'a>,
    pub block: usize,
    pub depth: usize,
    pub offsets: &'a [u64],
    /// Schedule for ways that are [paced](crate::ways::ReadWay::paced); without it, each read
    /// starts as soon as there is room.
    pub pace: Option<&'a Pace>,
    pub cancel: &'a AtomicBool,
}

impl Reads<'_> {
    /// Returns the offset of read number `index`; `None` after the last, or after an interrupt.
    #[inline]
    pub fn offset(&self, index: usize) -> Option<u64> {
        if self.cancel.load(Ordering::Relaxed) { None } else { self.offsets.get(index).copied() }
    }

    /// Iterates over all offsets, until an interrupt.
    pub fn each_offset(&self) -> impl Iterator<Item = u64> {
        (0..).map_while(|index| self.offset(index))
    }

    /// Returns the number of operations and bytes.
    pub fn totals(&self) -> (u64, u64) {
        (self.offsets.len() as u64, self.offsets.iter().map(|&offset| self.len_at(offset) as u64).sum())
    }

    /// Returns the length of a read at `offset`: a block, or less at the end of the file.
    #[inline]
    pub fn len_at(&self, offset: u64) -> usize {
        self.block.min(self.target.size.saturating_sub(offset) as usize)
    }
}

/// Gathers that arrive by a schedule, with at most `depth` in flight.
#[derive(Clone, Copy, Debug)]
pub struct Gathers<'a> {
    pub target: Target<'a>,
    /// Size of a record.
    pub block: usize,
    /// Number of records in a gather.
    pub records: usize,
    pub depth: usize,
    /// Offsets of all records, none of which reaches beyond the end of the file.
    pub offsets: &'a [u64],
    pub pace: &'a Pace,
    pub cancel: &'a AtomicBool,
}

impl Gathers<'_> {
    /// Returns the number of bytes of a gather.
    pub fn output_len(&self) -> usize {
        self.records * self.block
    }
}

/// Small files, each opened, read to its end and closed, with `depth` in flight.
#[derive(Clone, Copy, Debug)]
pub struct SmallFiles<'a> {
    /// Numbers and names of the files. Shared, for tasks that outlive a borrow.
    pub files: &'a Arc<[(u64, PathBuf)]>,
    /// Maximum length of a file. A way must find out the length of each.
    pub len_max: usize,
    pub depth: usize,
    pub cancel: &'a AtomicBool,
}

/// Writes of one block each, from the start of an empty file on, with `depth` in flight until
/// `blocks` are written.
#[derive(Clone, Copy, Debug)]
pub struct Writes<'a> {
    /// The file, open for writing. Shared, for tasks that outlive a borrow.
    pub file: &'a Arc<File>,
    /// Path for ways that open the file.
    pub path: &'a Path,
    pub block: usize,
    pub depth: usize,
    pub blocks: u64,
    pub contents: Contents,
    pub cancel: &'a AtomicBool,
}

impl Writes<'_> {
    /// Returns the offset of write number `index`; `None` after the last, or after an interrupt.
    #[inline]
    pub fn offset(&self, index: u64) -> Option<u64> {
        if index >= self.blocks || self.cancel.load(Ordering::Relaxed) {
            return None;
        }
        Some(index * self.block as u64)
    }

    /// Iterates over all offsets, until an interrupt.
    pub fn each_offset(&self) -> impl Iterator<Item = u64> {
        (0..).map_while(|index| self.offset(index))
    }

    /// Returns a buffer for each write in flight, for ways that must own their buffers.
    pub fn buffers(&self) -> Vec<Vec<u8>> {
        let mut block = vec![0; self.block];
        self.contents.prepare(&mut block, self.block);
        vec![block; self.depth]
    }
}

/// Records of one size. Each of `writers` threads or tasks appends `in_flight` records, waits until
/// the oldest is on stable storage, and appends the next, up to `commits` records. With a schedule,
/// `commits` records arrive in all, and a free writer takes the next one.
#[derive(Clone, Copy, Debug)]
pub struct Commits<'a> {
    /// A file of the length that the way requires, filled with durable zeros.
    pub file: &'a File,
    /// Path for ways that open the file with direct I/O.
    pub path: &'a Path,
    /// Directory of the file, for a way that creates its own files.
    pub folder: &'a Path,
    pub writers: usize,
    /// Number of records in flight of each writer. More than 1 only for a way that
    /// [pipelines](crate::ways::LogWay::pipelines).
    pub in_flight: usize,
    pub size: usize,
    pub commits: u64,
    /// Schedule of the arrivals.
    pub pace: Option<&'a Pace>,
    pub records: Records,
    pub cancel: &'a AtomicBool,
}

impl Commits<'_> {
    /// Returns the number of the record with this sequence of this writer; `None` after the last,
    /// or after an interrupt.
    #[inline]
    pub fn number(&self, writer: usize, sequence: u64) -> Option<u64> {
        let more = sequence < self.commits && !self.cancel.load(Ordering::Relaxed);
        more.then(|| Records::number(writer, sequence))
    }

    /// Returns the number of records of all writers.
    pub fn total(&self) -> u64 {
        if self.pace.is_some() { self.commits } else { self.writers as u64 * self.commits }
    }

    /// Returns whether a round that does not verify all records reads this one back: each writer's
    /// last record, and a few others by seed.
    pub fn is_sampled(&self, number: u64) -> bool {
        const FEW: u64 = 8;
        let all = self.total();
        number + 1 == self.commits || Random::of(self.records.seed, number).below(all) < FEW
    }
}

/// Contents of logged records. Each record starts with its number, by which it is found, and
/// continues with random bytes.
#[derive(Debug, Clone, Copy)]
pub struct Records {
    seed: u64,
}

impl Records {
    /// Minimum size of a record: its number, and as many bytes that distinguish it from an older
    /// one.
    pub const SMALLEST: usize = 16;

    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns the number of a record. Each writer has separate numbers.
    pub fn number(writer: usize, sequence: u64) -> u64 {
        (writer as u64) << 32 | sequence
    }

    #[inline]
    pub fn make(&self, record: &mut [u8], number: u64) {
        // The random bytes come from an offset that no other record of this size uses.
        testfile::fill(self.seed, number.wrapping_mul(record.len() as u64), record);
        let mark = number.to_le_bytes();
        record[..mark.len()].copy_from_slice(&mark);
    }

    /// Returns whether `record` is the one with this number.
    pub fn holds(&self, number: u64, record: &[u8]) -> bool {
        record.len() >= Self::SMALLEST && self.made(record.len(), number) == record
    }

    /// Returns the CRC-32C of the record of this size and number.
    pub fn checksum(&self, size: usize, number: u64) -> u32 {
        crc32c::crc32c(&self.made(size, number))
    }

    fn made(&self, size: usize, number: u64) -> Vec<u8> {
        let mut record = vec![0; size];
        self.make(&mut record, number);
        record
    }
}

/// Contents of written blocks: the same random bytes in each block, with each page's offset at both
/// ends of the page. So preparing a block takes a few nanoseconds per page on the clock, and a
/// misplaced block or part of one is detected. No page contains only zeros.
#[derive(Debug, Clone, Copy)]
pub struct Contents {
    seed: u64,
}

impl Contents {
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Fills every block of `buffer` with the common contents.
    pub fn prepare(&self, buffer: &mut [u8], block: usize) {
        buffer.chunks_mut(block).for_each(|block| testfile::fill(self.seed, 0, block));
    }

    /// Returns the complete block for `offset`.
    pub fn block_at(&self, block: usize, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; block];
        self.prepare(&mut bytes, block);
        self.place(&mut bytes, offset);
        bytes
    }

    /// Turns a prepared block into the one for `offset`.
    #[inline]
    pub fn place(&self, block: &mut [u8], offset: u64) {
        for (offset, page) in (offset..).step_by(PAGE).zip(block.chunks_mut(PAGE)) {
            let mark = (offset ^ self.seed).to_le_bytes();
            let last = page.len() - mark.len();
            page[..mark.len()].copy_from_slice(&mark);
            page[last..].copy_from_slice(&mark);
        }
    }
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub offset: u64,
    pub len: u32,
}

/// Batches of records. The records of a batch are requested together, consecutive in one buffer;
/// batches are sequential.
#[derive(Debug)]
pub struct Gather<'a> {
    pub target: Target<'a>,
    pub cancel: &'a AtomicBool,
    ranges: &'a [Range],
    records: usize,
    /// Number of bytes of each batch.
    sizes: Vec<usize>,
}

/// One batch of a [`Gather`].
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub ranges: &'a [Range],
    /// Sum of the records' lengths.
    pub bytes: usize,
}

impl<'a> Gather<'a> {
    /// Cuts `ranges` into batches of `records`.
    pub fn new(target: Target<'a>, ranges: &'a [Range], records: usize, cancel: &'a AtomicBool) -> Self {
        let bytes = |batch: &[Range]| batch.iter().map(|range| range.len as usize).sum();
        let sizes = ranges.chunks(records).map(bytes).collect();
        Self { target, cancel, ranges, records, sizes }
    }

    /// Returns the maximum number of records in a batch.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Returns the size of the output buffer: the bytes of the largest batch.
    pub fn output_len(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Iterates over all batches, until an interrupt.
    pub fn each_batch(&self) -> impl Iterator<Item = Batch<'a>> {
        let batches = self.ranges.chunks(self.records).zip(&self.sizes);
        batches.take_while(|_| !self.cancel.load(Ordering::Relaxed)).map(|(ranges, &bytes)| Batch { ranges, bytes })
    }
}

impl<'a> Batch<'a> {
    /// Splits the batch into up to `count` parts, one per thread.
    pub fn shares(self, count: usize) -> impl Iterator<Item = Batch<'a>> {
        let shares = self.ranges.chunks(self.ranges.len().div_ceil(count.max(1)).max(1));
        shares.map(|ranges| Batch { ranges, bytes: ranges.iter().map(|range| range.len as usize).sum() })
    }

    /// Iterates over each record's offset in the file and its part of the output.
    pub fn pieces<'b>(self, output: &'b mut [u8]) -> impl Iterator<Item = (u64, &'b mut [u8])> + use<'a, 'b> {
        let mut rest = output;
        self.ranges.iter().map(move |range| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(range.len as usize);
            rest = after;
            (range.offset, piece)
        })
    }
}

/// Memory as in a storage engine: aligned for huge pages, in huge pages if the kernel has any, and
/// touched before the clock runs.
#[derive(Debug)]
pub struct Buffer {
    memory: MmapMut,
    start: usize,
    len: usize,
}

impl Buffer {
    /// # Panics
    /// If memory is short.
    pub fn new(len: usize) -> Self {
        const ALIGN: usize = 2 << 20;
        let mut memory = MmapMut::map_anon(len + ALIGN).expect("there is memory for a buffer");
        // A kernel without huge pages refuses the advice.
        let _ = memory.advise(Advice::HugePage);
        let start = memory.as_ptr().align_offset(ALIGN);
        memory[start..start + len].fill(0xa5);
        Self { memory, start, len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_target<T>(size: u64, test: impl FnOnce(Target<'_>) -> T) -> T {
        let file = File::open("/dev/null").unwrap();
        test(Target { file: &file, path: Path::new("/dev/null"), size, direct: false })
    }

    #[test]
    fn buffers_are_aligned_for_huge_pages() {
        let mut buffer = Buffer::new(5000);
        assert_eq!(buffer.bytes().len(), 5000);
        assert_eq!(buffer.bytes().as_ptr() as usize % (2 << 20), 0);
        assert!(buffer.bytes().iter().all(|byte| *byte == 0xa5));
    }

    #[test]
    fn the_last_block_is_short_and_cancel_stops() {
        with_target(10_000, |target| {
            let cancel = AtomicBool::new(false);
            let reads = Reads { target, block: 4096, depth: 1, offsets: &[8192, 0], pace: None, cancel: &cancel };
            assert_eq!(reads.each_offset().map(|at| reads.len_at(at)).collect::<Vec<_>>(), [1808, 4096]);
            cancel.store(true, Ordering::Relaxed);
            assert_eq!(reads.each_offset().count(), 0);
        });
    }

    #[test]
    fn blocks_differ_by_their_offset_only() {
        let contents = Contents::new(9);
        let mut blocks = vec![0; 8192];
        contents.prepare(&mut blocks, 4096);
        let (first, second) = blocks.split_at_mut(4096);
        assert_eq!(first, second);
        contents.place(first, 0);
        contents.place(second, 4096);
        assert_ne!(first, second);
        assert_eq!(first[8..4088], second[8..4088]);
        contents.place(second, 0);
        assert_eq!(first, second);
    }

    #[test]
    fn every_record_is_another_and_has_its_number() {
        let make = |seed, number| {
            let mut record = vec![0; 20];
            Records::new(seed).make(&mut record, number);
            record
        };
        let number = Records::number(63, 5);
        let record = make(1, number);
        assert_eq!(record[..8], number.to_le_bytes());
        assert!(Records::new(1).holds(number, &record) && !Records::new(2).holds(number, &record));
        assert_ne!(make(1, Records::number(62, 5))[8..], record[8..]);
        assert_ne!(make(1, Records::number(63, 4))[8..], record[8..]);
    }

    #[test]
    fn a_part_of_a_block_knows_its_place() {
        let contents = Contents::new(9);
        let mut block = vec![0; 4 * PAGE + 512];
        contents.prepare(&mut block, 4 * PAGE + 512);
        contents.place(&mut block, 1 << 20);
        let mut elsewhere = block.clone();
        contents.place(&mut elsewhere, 2 << 20);
        assert!(block.chunks(PAGE).zip(elsewhere.chunks(PAGE)).all(|(here, there)| here != there));
    }

    #[test]
    fn shares_are_no_more_than_asked_for_and_cover_a_batch() {
        let ranges: Vec<Range> = (0..65).map(|i| Range { offset: i * 100, len: i as u32 }).collect();
        let all = Batch { ranges: &ranges, bytes: (0..65).sum() };
        for (count, shares) in [(1, 1), (2, 2), (32, 22), (64, 33), (100, 65)] {
            let shared: Vec<Batch<'_>> = all.shares(count).collect();
            assert_eq!(shared.len(), shares);
            assert!(shared.iter().flat_map(|share| share.ranges).eq(&ranges));
            assert_eq!(shared.iter().map(|share| share.bytes).sum::<usize>(), all.bytes);
        }
    }

    #[test]
    fn batches_cover_all_ranges_in_order() {
        with_target(10_000, |target| {
            let cancel = AtomicBool::new(false);
            let ranges: Vec<Range> = (0..5).map(|i| Range { offset: i * 100, len: 10 + i as u32 }).collect();
            let gather = Gather::new(target, &ranges, 2, &cancel);
            assert_eq!(gather.output_len(), 25);
            let mut output = vec![0; 25];
            let pieces = gather.each_batch().map(|batch| {
                assert_eq!(batch.bytes, batch.ranges.iter().map(|range| range.len as usize).sum::<usize>());
                batch.pieces(&mut output).map(|(offset, piece)| (offset, piece.len())).collect::<Vec<_>>()
            });
            let pieces: Vec<_> = pieces.flatten().collect();
            assert_eq!(pieces, [(0, 10), (100, 11), (200, 12), (300, 13), (400, 14)]);
        });
    }
}
