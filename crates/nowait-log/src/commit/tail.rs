//! The tail: the last durable blocks in memory, for readers that follow the end of the log.
//!
//! Blocks are kept only while a reader exists, up to a bound of bytes. Readers read other blocks
//! from the segments.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::state::InFlight;
use crate::os::lock;
use crate::sealed::SealedBlock;
use nowait::Buf;

/// A durable block with records, as it was written.
#[derive(Clone)]
pub(crate) struct CachedBlock {
    pub(crate) bytes: Arc<Buf>,
    /// Offset of the block in `bytes`.
    pub(crate) base: usize,
    pub(crate) segment: u64,
    /// Offset of the next block in the segment.
    pub(crate) end: u64,
    pub(crate) epoch: u64,
    pub(crate) first_lsn: u64,
    pub(crate) records: u32,
}

impl CachedBlock {
    /// Converts the block for an application's hook.
    pub(super) fn handed_over(self) -> SealedBlock {
        let CachedBlock { bytes, base, epoch, first_lsn, records, .. } = self;
        SealedBlock { bytes, base, first_lsn, records, epoch, is_durable: true }
    }

    fn next_lsn(&self) -> u64 {
        self.first_lsn + u64::from(self.records)
    }
}

pub(crate) struct TailCache {
    bytes_max: u64,
    /// Number of readers. Changes with `blocks` locked.
    readers: AtomicU32,
    blocks: Mutex<CachedBlocks>,
}

/// Blocks of one epoch, by LSN; some may be missing.
#[derive(Default)]
struct CachedBlocks {
    blocks: VecDeque<CachedBlock>,
    bytes: u64,
}

/// Blocks removed from the tail, to be dropped with no lock held.
#[must_use = "dropped where nothing is locked"]
#[derive(Default)]
pub(crate) struct GivenUp(Vec<CachedBlock>);

impl TailCache {
    pub(crate) fn new(bytes_max: u64) -> TailCache {
        TailCache { bytes_max, readers: AtomicU32::new(0), blocks: Mutex::default() }
    }

    /// Keeps completed blocks up to the last durable record. Called with the state locked, so that
    /// blocks are added in order, and before the durable LSN is published.
    pub(crate) fn keep<F>(&self, ended: &[InFlight<F>], durable: u64) -> GivenUp {
        let mut given_up = GivenUp::default();
        if self.readers.load(Ordering::Relaxed) == 0 || self.bytes_max == 0 {
            return given_up;
        }
        // No commit waits for a reader: a reader finds an omitted block in its segment.
        let Ok(mut kept) = self.blocks.try_lock() else { return given_up };
        if self.readers.load(Ordering::Relaxed) == 0 {
            return given_up;
        }
        for block in ended.iter().filter_map(|block| block.kept()).filter(|block| block.next_lsn() <= durable + 1) {
            kept.bytes += block.bytes.capacity() as u64;
            kept.blocks.push_back(block);
        }
        while kept.bytes > self.bytes_max {
            let Some(oldest) = kept.blocks.pop_front() else { break };
            kept.bytes -= oldest.bytes.capacity() as u64;
            given_up.0.push(oldest);
        }
        given_up
    }

    /// Removes all blocks, before the end of the log is cut.
    pub(crate) fn clear(&self) -> GivenUp {
        lock(&self.blocks).take()
    }

    /// Returns the block that contains record `lsn`.
    pub(crate) fn find(&self, lsn: u64) -> Option<CachedBlock> {
        let kept = lock(&self.blocks);
        let at = kept.blocks.partition_point(|block| block.next_lsn() <= lsn);
        kept.blocks.get(at).filter(|block| block.first_lsn <= lsn).cloned()
    }

    pub(crate) fn add_reader(&self) {
        let _kept = lock(&self.blocks);
        self.readers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_reader(&self) -> GivenUp {
        let mut kept = lock(&self.blocks);
        match self.readers.fetch_sub(1, Ordering::Relaxed) {
            1 => kept.take(),
            _ => GivenUp::default(),
        }
    }
}

impl CachedBlocks {
    fn take(&mut self) -> GivenUp {
        self.bytes = 0;
        GivenUp(std::mem::take(&mut self.blocks).into())
    }
}

#[cfg(all(test, not(nowait_log_loom)))]
mod tests {
    use super::*;

    fn block(first_lsn: u64, records: u32) -> CachedBlock {
        let bytes = Arc::new(Buf::zeroed(4096));
        CachedBlock { bytes, base: 0, segment: 1, end: 0, epoch: 1, first_lsn, records }
    }

    #[test]
    fn a_block_is_found_by_its_records_beside_gaps() {
        let tail = TailCache::new(1 << 20);
        tail.add_reader();
        for kept in [block(3, 2), block(5, 1), block(9, 3)] {
            lock(&tail.blocks).blocks.push_back(kept);
        }
        let firsts = Vec::from_iter((1..=13).map(|lsn| tail.find(lsn).map_or(0, |found| found.first_lsn)));
        assert_eq!(firsts, [0, 0, 3, 3, 5, 0, 0, 0, 9, 9, 9, 0, 0]);
        tail.add_reader();
        assert_eq!(tail.remove_reader().0.len(), 0, "there is another");
        assert_eq!(tail.remove_reader().0.len(), 3);
        assert!(tail.find(3).is_none());
    }
}
