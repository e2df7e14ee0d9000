//! Bad input and bad luck: odd ranges, objects that vanish or shrink, full disks, writers at the same time.

#![allow(clippy::duplicate_mod)]

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "object-store-0-13")]
mod v0_13;
#[cfg(feature = "object-store-0-14")]
mod v0_14;
