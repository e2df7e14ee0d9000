//! What the library promises on file systems and devices that the tests make, where calls are
//! refused or run into a limit, and of what a process of its own can count: its memory, threads and
//! descriptors. Needs root for most.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../promises/mod.rs"]
mod promises;

mod aio;
mod appends;
mod asleep;
mod churn;
mod direct;
mod filesystems;
mod first_calls;
mod footprint;
mod fork;
mod full_disks;
mod isolation;
mod leftovers;
mod limits;
mod lost_writes;
mod model;
mod opens;
mod order;
mod partial;
mod refused;
mod troubles;
mod writes;

/// Serves the file systems of all modules.
#[test]
fn child() {
    if common::child::role().as_deref() == Some(common::fuse::ROLE) {
        common::fuse::serve();
    }
}
