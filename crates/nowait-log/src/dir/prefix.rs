//! The beginning of a log: what it still needs, and giving up the rest of one that is not open.

use super::{LogDir, Segment};
use crate::format::Control;
use nowait::Result;

/// Returns the first record of the segments that hold the last `bytes` of blocks: `newest` are in
/// the segment behind these.
pub(crate) fn lsn_by_bytes(segments: &[Segment], newest: u64, bytes: u64) -> Option<u64> {
    let mut kept = newest;
    let needed = segments.iter().rev().take_while(|segment| {
        let is_needed = kept < bytes;
        kept = kept.saturating_add(segment.end);
        is_needed
    });
    needed.last().map(|oldest| oldest.header.first_lsn())
}

impl LogDir {
    /// Gives up segments of a log that is locked and not open, if they hold only records before
    /// `lsn`; never the last one that holds records. Needs no room on the disk. False if there is none.
    pub(crate) fn give_up_before(&self, lsn: u64, control: &mut Control, chain: &mut Vec<Segment>) -> Result<bool> {
        let last = chain.iter().rposition(|segment| !segment.is_empty()).unwrap_or(0);
        let starts = chain.iter().skip(1).take(last);
        let count = starts.take_while(|next| next.header.first_lsn() <= lsn).count();
        let Some(oldest) = chain.get(count).filter(|_| count > 0) else { return Ok(false) };
        let (oldest, epoch) = (oldest.header.number, oldest.header.epoch);
        let mut given_up = Control { oldest, newest: control.newest.max(oldest), ..*control };
        given_up.epochs.forget_before(epoch);
        // First: recovery takes what is missing behind the oldest for damage.
        self.write_control(&given_up)?;
        *control = given_up;
        for gone in chain.drain(..count) {
            self.remove(gone.header.number)?;
        }
        Ok(true)
    }
}
