//! The work of `nowait bench` on other runtimes and logs, as ways for the tables of `nowait-bench`:
//! rounds are interleaved, cold is verified and bytes are checked as there.
//!
//! Read downwards; a file uses those above it, never those below.
//!
//! * [`aligned`]: a buffer for runtimes that own theirs while a read is in flight.
//! * [`one_thread`]: what the runtimes have in common that drive io_uring from one thread, and
//!   their ways of reading and writing.
//! * [`tokio_uring`], [`compio`], [`monoio`], [`glommio`]: one such runtime each.
//! * [`tokio_fs`]: files of tokio, which have a position.
//! * [`logs`]: one file for each log.
//! * [`peers`]: which ways take part in which table, and what they are.

#![forbid(unsafe_code)]

pub mod aligned;
pub mod compio;
pub mod glommio;
pub mod logs;
pub mod monoio;
pub mod one_thread;
pub mod peers;
pub mod tokio_fs;
pub mod tokio_uring;
