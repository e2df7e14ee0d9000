//! Slots for the tests of this folder.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Wake;
#[cfg(not(nowait_loom))]
use std::task::Waker;

use super::owner::Owner;
use super::request::Request;
use super::slot::{Notify, Slot};
use super::transfer::Transfer;
use crate::buf::Memory;
use crate::stats::Counters;
#[cfg(not(nowait_loom))]
use {
    super::file::{Fallback, OpenFile},
    super::request::Handle,
    crate::direct::Directness,
};

#[derive(Default)]
pub(super) struct Wakes(pub(super) AtomicUsize);
impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// No engine of these tests hands slots on.
#[cfg(not(nowait_loom))]
struct NoPool;
#[cfg(not(nowait_loom))]
impl Fallback for NoPool {
    fn take(&self, _: Arc<Slot>) {
        unreachable!("no slot is handed on");
    }
}

/// A file, and a slot with a read of it.
#[cfg(not(nowait_loom))]
pub(super) fn file_and_slot() -> (Arc<OpenFile>, Arc<Slot>, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    let handle = Handle::Simulated { file: 0, flags: rustix::fs::OFlags::empty() };
    let file = Arc::new(OpenFile::new(handle, Directness::NotAsked, counters.clone(), Arc::new(NoPool)));
    let request = Request::Read(Transfer::new(Memory::Vec(vec![0; 8]), 0));
    let slot = Slot::new(request, Owner::File(file.clone()), Notify::Waker(Waker::noop().clone()));
    (file, slot, counters)
}

/// A slot that notifies no one.
#[cfg(not(nowait_loom))]
pub(super) fn idle_slot() -> (Arc<Slot>, Arc<Counters>) {
    slot(Notify::Waker(Waker::noop().clone()))
}

/// A slot with a read of eight bytes.
pub(super) fn slot(notify: Notify) -> (Arc<Slot>, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    let request = Request::Read(Transfer::new(Memory::Vec(vec![0; 8]), 0));
    (Slot::new(request, Owner::Nobody(counters.clone()), notify), counters)
}
