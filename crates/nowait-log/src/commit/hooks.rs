//! Passes blocks to the application's hooks in order, on a separate thread.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::calls::{Call, Calls};
use crate::os::lock;
use crate::sealed::{BlockHook, BlockHooks, SealedBlock};

pub(crate) struct Hooks {
    calls: Calls,
    sealed: Option<Outlet>,
    durable: Option<Outlet>,
}

struct Outlet {
    hook: BlockHook,
    order: Mutex<Order>,
}

/// Puts blocks in order, since several threads seal and complete them. Each block is passed on
/// after all earlier ones.
#[derive(Default)]
struct Order {
    /// Number of the next submission to pass on.
    next: u64,
    /// Later submissions; None for a block without records.
    early: BTreeMap<u64, Option<SealedBlock>>,
}

impl Hooks {
    pub(crate) fn new(hooks: BlockHooks) -> Hooks {
        let outlet = |hook| Outlet { hook, order: Mutex::default() };
        let calls = Calls::new("nowait-log-blocks");
        Hooks { calls, sealed: hooks.sealed.map(outlet), durable: hooks.durable.map(outlet) }
    }

    /// Passes on a block that was sealed. The caller holds no lock.
    pub(crate) fn sealed(&self, id: u64, block: impl FnOnce() -> Option<SealedBlock>, may_run_here: bool) {
        self.hand_over(self.sealed.as_ref(), id, block, may_run_here);
    }

    /// Passes on a block that is durable. The caller holds no lock.
    pub(crate) fn durable(&self, id: u64, block: impl FnOnce() -> Option<SealedBlock>, may_run_here: bool) {
        self.hand_over(self.durable.as_ref(), id, block, may_run_here);
    }

    fn hand_over(
        &self,
        outlet: Option<&Outlet>,
        id: u64,
        block: impl FnOnce() -> Option<SealedBlock>,
        may_run_here: bool,
    ) {
        let Some(outlet) = outlet else { return };
        let block = block();
        let mut order = lock(&outlet.order);
        order.early.insert(id, block);
        let mut any = false;
        loop {
            let next = order.next;
            let Some(block) = order.early.remove(&next) else { break };
            order.next += 1;
            // Under the lock of the order, so that calls are queued in order. No other code takes
            // this lock.
            let calls = block.map(|block| Call::Block(outlet.hook.clone(), block));
            any |= calls.is_some();
            self.calls.add(calls);
        }
        drop(order);
        if any {
            self.calls.serve(may_run_here);
        }
    }
}
