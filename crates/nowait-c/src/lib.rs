//! The C interface of nowait: `include/nowait.h`, a static library, and a shared one that `make
//! install` links from it. The header is the reference; `docs/guide/c.md` is the introduction.
//!
//! This crate is for C only. Rust programs use `nowait`, `nowait-cache`, `nowait-log`, `nowait-copy`
//! and `nowait-probe`.
//!
//! The files in order; each uses only those before it:
//!
//! * `failure.rs`: a negative errno, and a message that the thread keeps;
//! * `border.rs`: catches panics; checks callers' pointers, and structs that grow;
//! * `handle.rs`: numbers instead of pointers, so that a stale one is an error;
//! * then the interface: `instance.rs`, `file.rs`, `vectored.rs`, `space.rs`, `metadata.rs`,
//!   `lock.rs`, `names.rs`, `gather.rs`, `cache.rs`, `log.rs`, `reader.rs`, `copy.rs`, `queue/`,
//!   `probe.rs`.

mod border;
mod cache;
mod copy;
mod failure;
mod file;
mod gather;
mod handle;
mod instance;
mod lock;
mod log;
mod metadata;
mod names;
mod probe;
mod queue;
mod reader;
mod space;
mod vectored;

pub use cache::*;
pub use copy::*;
pub use file::*;
pub use gather::*;
pub use instance::*;
pub use lock::*;
pub use log::*;
pub use metadata::*;
pub use names::*;
pub use probe::*;
pub use queue::*;
pub use reader::*;
pub use space::*;
pub use vectored::*;
