//! From queues to the kernel to pools: results, and slots that a queue cannot serve.

use std::sync::Arc;

use crate::sys::Errno;

use crate::op::Slot;
use crate::stats::Count;

/// Settles one result of a queue to the kernel, counted as `served`. Returns the slot if its rest
/// must go to the kernel again.
pub(crate) fn settle(slot: Arc<Slot>, result: Result<usize, Errno>, served: Count) -> Option<Arc<Slot>> {
    // A plain call can do what the queue cannot (an opcode, a flag, a file that may not sleep
    // there), or gives the errno that counts. ECANCELED and EFAULT also end a ring's requests whose
    // submitting thread is gone: the kernel would go on with them in that thread
    // (io_req_task_submit in io_uring/io_uring.c, 5.12 to 6.18).
    if let Err(errno @ (Errno::INVAL | Errno::OPNOTSUPP | Errno::AGAIN | Errno::CANCELED | Errno::FAULT)) = result {
        slot.refused(errno);
        hand_on(slot);
        return None;
    }
    match slot.complete(result, served) {
        Some(leftovers) => {
            leftovers.let_go();
            None
        }
        None => Some(slot),
    }
}

/// Discards slots that a line before a full queue has shed. Called with nothing locked.
pub(crate) fn discard(shed: Vec<Arc<Slot>>) {
    shed.into_iter().for_each(|slot| slot.discard().let_go());
}

/// Hands a slot that a queue to the kernel cannot serve to the pools of its instance.
pub(crate) fn hand_on(slot: Arc<Slot>) {
    if let Some(pools) = slot.hand_on() {
        pools.take(slot);
    }
}
