//! The tests that `object_store` publishes for stores, unchanged, in each release, with the options of a store and without.

#![allow(clippy::duplicate_mod)]

#[cfg(feature = "object-store-0-13")]
mod v0_13;
#[cfg(feature = "object-store-0-14")]
mod v0_14;
