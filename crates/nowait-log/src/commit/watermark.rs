//! Watermark blocks: written when a log is opened, is cut, becomes idle, or ends.

use std::sync::Arc;

use super::state::{NoRoom, Refusal};
use super::{Group, Pipeline, Shared};
use crate::os::APPEND;
use nowait::{Error, ErrorKind, Result, embed};

impl Shared {
    /// Writes a watermark block, and waits until it is durable.
    pub(crate) fn write_watermark(self: &Arc<Self>) -> std::result::Result<(), NoRoom<Error>> {
        let mut state = self.state();
        // Checked in the lock that adds the block: a block added to a failed log would never end.
        state.check_open().map_err(|refusal| {
            NoRoom::Refused(match refusal {
                Refusal::Closed => {
                    let text = "the log was closed, and its last watermark block is being written";
                    self.error(APPEND, ErrorKind::Closed, text)
                }
                refusal => self.refusal(refusal),
            })
        })?;
        let group = self.begin_watermark(&mut state)?;
        drop(state);
        self.wait(0, &group).map(drop).map_err(NoRoom::Refused)
    }

    /// Adds a watermark block after the pending blocks; returns its group. The log must not have
    /// failed.
    pub(crate) fn begin_watermark(&self, state: &mut Pipeline) -> std::result::Result<Arc<Group>, NoRoom<Error>> {
        self.put_watermark(state, false, false)
    }

    fn put_watermark(
        &self,
        state: &mut Pipeline,
        is_last: bool,
        is_closed: bool,
    ) -> std::result::Result<Arc<Group>, NoRoom<Error>> {
        let rotations = state.numbers.rotations;
        let group = state.put_watermark(is_last, is_closed, || embed::now(&self.dir.instance));
        if state.numbers.rotations != rotations {
            // The next segment must be prepared.
            self.wake_maintenance(state);
        }
        self.refused(group)
    }

    /// Refuses appends from now on, and adds the last watermark block after the pending blocks.
    /// `closed`: the block states that the log was closed. Returns the block's group; None if the
    /// log is already closing, or needs no watermark block.
    pub(crate) fn begin_closing(&self, closed: bool) -> Option<Result<Arc<Group>>> {
        let mut state = self.state();
        if !state.begin_closing(!closed) {
            return None;
        }
        let last_lsn = state.next_lsn - 1;
        let last = match self.poisoned(&state) {
            Some(error) => Some(Err(error)),
            None if closed || state.lacks_watermark(last_lsn) => {
                // The last page of the segment is reserved for this block.
                Some(self.put_watermark(&mut state, true, closed).map_err(|no_room| self.no_room(no_room)))
            }
            None => None,
        };
        let in_vain = state.take_watchers_in_vain();
        let rooms = std::mem::take(&mut state.room_wakers);
        state.maintenance_sleeps = false;
        drop(state);
        self.handover.work.notify_all();
        self.handover.room.notify_all();
        self.wake_all(in_vain.into_iter().chain(rooms));
        last
    }
}
