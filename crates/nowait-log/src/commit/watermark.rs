//! Watermark blocks: when a log is opened, is cut, becomes idle, and ends.

use std::sync::Arc;

use super::state::{NoRoom, Refusal};
use super::{Group, Pipeline, Shared};
use crate::os::APPEND;
use nowait::{Error, ErrorKind, Result, embed};

impl Shared {
    /// Writes a watermark block; it is durable when this returns.
    pub(crate) fn write_watermark(self: &Arc<Self>) -> std::result::Result<(), NoRoom<Error>> {
        let mut state = self.state();
        // A log that fails here has failed for good: a block that is added afterwards would never
        // end.
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

    /// Puts a watermark block behind what is pending; returns the group that waits for it. The log
    /// has not failed.
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
            // The next segment is to be prepared.
            self.wake_maintenance(state);
        }
        self.refused(group)
    }

    /// Refuses appends from here on, and puts the last watermark block behind what is pending.
    /// `closed`: the block states that the log was closed. Returns the group that waits for it and
    /// for everything before; None when the log is closing already, or needs no watermark block.
    pub(crate) fn begin_closing(&self, closed: bool) -> Option<Result<Arc<Group>>> {
        let mut state = self.state();
        if !state.begin_closing(!closed) {
            return None;
        }
        let last_lsn = state.next_lsn - 1;
        let last = match self.poisoned(&state) {
            Some(error) => Some(Err(error)),
            None if closed || state.lacks_watermark(last_lsn) => {
                // A watermark always has room.
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
