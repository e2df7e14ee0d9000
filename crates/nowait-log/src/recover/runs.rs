//! Selects and orders runs of intact blocks.

use std::ops::Range;

use crate::dir::Run;
use crate::format::{BlockHeader, Control, End, SegmentHeader};

/// Returns a header for a segment that has none.
pub(crate) fn stand_in(control: &Control, number: u64, lsn: u64) -> SegmentHeader {
    let Control { log_id, segment_bytes: bytes, .. } = *control;
    let previous = End { lsn, ..End::default() };
    SegmentHeader { log_id, number, bytes, previous, ..SegmentHeader::default() }
}

/// True if the block belongs to the segment; false for earlier contents of its file.
pub(crate) fn is_of(header: &SegmentHeader, block: &BlockHeader) -> bool {
    block.epoch == header.epoch && block.first_lsn >= header.first_lsn()
}

/// Returns the valid part of a run, if the log continues elsewhere from `limit` on.
pub(crate) fn within(mut run: Run, limit: Option<End>) -> Option<Run> {
    if let Some(limit) = limit {
        run.lsns.end = run.lsns.end.min(limit.last_there() + 1);
        if run.bytes.start >= limit.offset {
            return None;
        }
    }
    (!run.lsns.is_empty()).then_some(run)
}

/// Returns runs by LSN that overlap neither each other nor `kept`. If a record exists twice, the
/// newer one stays. A run above the watermark stays only if it continues a run that stays, and its
/// blocks are intact: see [`count`].
pub(crate) fn in_order(mut runs: Vec<Run>, kept: Range<u64>, watermark: u64) -> Vec<Run> {
    count(&mut runs, watermark);
    runs.sort_by_key(|run| (run.lsns.start, run.epoch));
    let mut ordered: Vec<Run> = Vec::new();
    for mut run in runs {
        if run.lsns.start < kept.start {
            run.lsns.end = run.lsns.end.min(kept.start);
        } else if run.lsns.start < kept.end {
            continue;
        }
        let before = ordered.last().map_or(kept.end, |last| last.lsns.end.max(kept.end));
        if run.lsns.start > watermark + 1 && run.lsns.start > before {
            break;
        }
        match ordered.last_mut().filter(|last| last.lsns.end > run.lsns.start) {
            Some(last) if last.epoch >= run.epoch => continue,
            Some(last) => last.lsns.end = run.lsns.start,
            None => {}
        }
        ordered.retain(|run| !run.lsns.is_empty());
        ordered.push(run);
    }
    ordered
}

/// Drops records of damaged blocks that may never have been complete, since a batch is not kept in
/// part.
pub(crate) fn count(runs: &mut Vec<Run>, watermark: u64) {
    runs.retain(|run| !run.is_part || run.block.1 <= watermark);
}

/// Returns the LSNs of the runs, with adjacent ranges joined.
pub(crate) fn joined(runs: &[Run]) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match joined.last_mut().filter(|last| last.end == run.lsns.start) {
            Some(last) => last.end = run.lsns.end,
            None => joined.push(run.lsns.clone()),
        }
    }
    joined
}
