//! Files and slots for tests.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};

use super::file::{Fallback, OpenFile};
use super::leftovers::Leftovers;
use super::owner::Owner;
use super::request::{Handle, Request};
use super::slot::{Notify, Slot};
use super::transfer::Transfer;
use crate::buf::Memory;
use crate::direct::Directness;
use crate::stats::Counters;
use crate::sys::OwnedFd;

#[derive(Default)]
pub(super) struct Wakes(pub(super) AtomicUsize);
impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// No engine of these tests hands slots on.
struct NoPool;
impl Fallback for NoPool {
    fn take(&self, _: Arc<Slot>) {
        unreachable!("no slot is handed on");
    }

    fn let_go(&self, _: u64, leftovers: Leftovers) {
        drop(leftovers);
    }
}

fn file_of(counters: &Arc<Counters>) -> Arc<OpenFile> {
    opened(Handle::Simulated { file: 0, flags: crate::sys::OFlags::empty() }, counters)
}

fn opened(handle: Handle, counters: &Arc<Counters>) -> Arc<OpenFile> {
    Arc::new(OpenFile::new(handle, Path::new("file").into(), Directness::NotAsked, counters.clone(), Arc::new(NoPool)))
}

/// A file of the kernel.
pub(crate) fn file_of_fd(fd: impl Into<OwnedFd>) -> Arc<OpenFile> {
    opened(Handle::Descriptor(fd.into()), &Arc::default())
}

/// A slot of this file, with a read of eight bytes, which wakes no one.
pub(crate) fn read_of(file: &Arc<OpenFile>) -> Arc<Slot> {
    slot_of(file, Notify::Waker(Waker::noop().clone()))
}

/// A file that no engine opens.
#[cfg(nowait_loom)]
pub(crate) fn file() -> Arc<OpenFile> {
    file_of(&Arc::default())
}

/// A slot of this file, with a read of eight bytes.
pub(crate) fn slot_of(file: &Arc<OpenFile>, notify: Notify) -> Arc<Slot> {
    let request = Request::Read(Transfer::new(Memory::Vec(vec![0; 8]), 0));
    Slot::new(request, Owner::File(file.clone()), notify)
}

/// A file, and a slot with a read of it.
#[cfg(not(nowait_loom))]
pub(super) fn file_and_slot() -> (Arc<OpenFile>, Arc<Slot>, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    let file = file_of(&counters);
    let slot = read_of(&file);
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
    (Slot::new(request, Owner::Nobody(counters.clone(), Arc::new(NoPool)), notify), counters)
}
