//! From queues to the kernel to pools: slots that a queue cannot serve, and leftovers whose drop
//! may take long.

use std::sync::Arc;

use rustix::io::Errno;

use super::{Pool, THREADS_MAX};
use crate::engine::Engine;
use crate::op::{Leftovers, Slot};
use crate::stats::Count;
use crate::sys::PerProcess;

/// The process's common pool, which drops leftovers.
fn common() -> &'static Pool {
    static COMMON: PerProcess<Pool> = PerProcess::new();
    COMMON.get(|| Pool::new(THREADS_MAX))
}

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
            let_go(leftovers);
            None
        }
        None => Some(slot),
    }
}

/// Drops an operation's leftovers, on a thread of the common pool if that may take long.
pub(crate) fn let_go(leftovers: Leftovers) {
    if leftovers.may_wait() {
        common().add(|state| state.leftovers.push_back(leftovers));
    }
}

/// Discards slots that a line before a full queue has shed. Called with nothing locked.
pub(crate) fn discard(shed: Vec<Arc<Slot>>) {
    shed.into_iter().for_each(|slot| let_go(slot.discard()));
}

/// Hands a slot that a queue to the kernel cannot serve to the pool of its file's instance.
pub(crate) fn hand_on(slot: Arc<Slot>) {
    match slot.hand_on() {
        Some(fallback) => fallback.take(slot),
        // Without a file, as no request for such a queue is.
        None => common().submit(slot),
    }
}

/// Waits until the leftovers of ended operations are dropped, of all instances.
pub(crate) fn drain_leftovers() {
    common().drain();
}
