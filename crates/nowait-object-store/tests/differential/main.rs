//! Random operations on this store and on `LocalFileSystem`, each in a directory of its own, and each answer compared.

#![allow(clippy::duplicate_mod)]

#[path = "../common/mod.rs"]
mod common;
mod system;
#[cfg(feature = "object-store-0-13")]
mod v0_13;
#[cfg(feature = "object-store-0-14")]
mod v0_14;
