//! The tests that `object_store` publishes for stores, unchanged, in each release, with the options of a store and without.

#![allow(clippy::duplicate_mod)]

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "object-store-0-13")]
mod v0_13;
#[cfg(feature = "object-store-0-14")]
mod v0_14;

#[test]
fn public_types_are_sent_shared_and_formatted() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<nowait_object_store::Options>();
    #[cfg(feature = "object-store-0-14")]
    shared::<nowait_object_store::v0_14::NowaitFileSystem>();
    #[cfg(feature = "object-store-0-13")]
    shared::<nowait_object_store::v0_13::NowaitFileSystem>();
}
