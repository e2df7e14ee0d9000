//! The pools of an instance, one for each device of its files.

use std::sync::{Arc, Mutex};

use super::{Pool, THREADS_MAX};
use crate::engine::Engine;
use crate::op::{Fallback, Leftovers, OpenFile, QueueKind, Slot};
use crate::sync::lock;
use crate::sys::PerProcess;

/// Pools by device. Open files refer to them, and slots keep their files open. So a slot that is
/// handed on after the instance was dropped still finds its pool. A slot in a queue of a pool also
/// refers to the pools, until a thread has finished it.
pub(crate) struct Pools {
    threads_max: usize,
    pools: PerProcess<Mutex<Vec<OfDevice>>>,
}

/// The number of a device, and its pool.
type OfDevice = (u64, Arc<Pool>);

/// The device of operations without a file.
const NONE: u64 = 0;

/// The pool for what belongs to no instance.
pub(crate) fn of_process() -> &'static Pool {
    static PROCESS: PerProcess<Pool> = PerProcess::new();
    PROCESS.get(|| Pool::new(THREADS_MAX))
}

impl Pools {
    /// Each pool has up to `threads_max` threads.
    pub(crate) fn new(threads_max: usize) -> Pools {
        Pools { threads_max, pools: PerProcess::new() }
    }

    fn of(&self, device: u64) -> Arc<Pool> {
        /// Most pools that are kept without work.
        const KEPT_MAX: usize = 64;
        let mut pools = lock(self.pools.get(Mutex::default));
        if let Some((_, pool)) = pools.iter().find(|(known, _)| *known == device) {
            return pool.clone();
        }
        let mut unused = Vec::new();
        if pools.len() >= KEPT_MAX {
            let is_used = |(_, pool): &OfDevice| Arc::strong_count(pool) > 1 || !pool.is_idle();
            let (used, rest) = std::mem::take(&mut *pools).into_iter().partition(is_used);
            (*pools, unused) = (used, rest);
        }
        let pool = Arc::new(Pool::new(self.threads_max));
        pools.push((device, pool.clone()));
        drop(pools);
        drop(unused);
        pool
    }

    fn of_slot(&self, slot: &Slot) -> Arc<Pool> {
        let device = slot.with(|_, owner| owner.file().map(|file| file.device().number)).flatten();
        self.of(device.unwrap_or(NONE))
    }
}

impl Engine for Pools {
    fn submit(&self, slot: Arc<Slot>) {
        self.of_slot(&slot).submit(slot);
    }

    fn submit_last(&self, slot: Arc<Slot>) {
        self.of_slot(&slot).submit_last(slot);
    }

    fn resume(&self, file: &OpenFile, kind: QueueKind) {
        self.of(file.device().number).resume(file, kind);
    }

    fn drain(&self) {
        let pools: Vec<_> = lock(self.pools.get(Mutex::default)).iter().map(|(_, pool)| pool.clone()).collect();
        pools.iter().for_each(|pool| pool.drain());
    }
}

impl Fallback for Pools {
    fn take(&self, slot: Arc<Slot>) {
        self.submit(slot);
    }

    fn let_go(&self, device: u64, leftovers: Leftovers) {
        self.of(device).let_go(leftovers);
    }
}
