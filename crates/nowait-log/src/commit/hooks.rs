//! Hands blocks over to the application, in their order, on a thread of their own.

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

/// Blocks are sealed, and end, on several threads. Each is handed over when all before it were.
#[derive(Default)]
struct Order {
    /// Number of the next submission.
    next: u64,
    /// Later ones; None where there are no records.
    early: BTreeMap<u64, Option<SealedBlock>>,
}

impl Hooks {
    pub(crate) fn new(hooks: BlockHooks) -> Hooks {
        let outlet = |hook| Outlet { hook, order: Mutex::default() };
        let calls = Calls::new("nowait-log-blocks");
        Hooks { calls, sealed: hooks.sealed.map(outlet), durable: hooks.durable.map(outlet) }
    }

    /// Hands over a block that was sealed. Nothing is locked.
    pub(crate) fn sealed(&self, id: u64, block: impl FnOnce() -> Option<SealedBlock>, may_run_here: bool) {
        self.hand_over(self.sealed.as_ref(), id, block, may_run_here);
    }

    /// Hands over a block that is durable. Nothing is locked.
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
            // Under the lock of the order, which nothing else takes: so they come in this order.
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
