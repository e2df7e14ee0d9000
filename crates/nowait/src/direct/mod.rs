//! Direct I/O: a file's requirements on a request's place, length and memory, and how a request is
//! made to meet them.
//!
//! A **read** is widened to whole blocks. Blocks that it wants in part go to memory of ours (its
//! *edges*); those between go to the caller's, if that lies as the device needs it, and else to
//! ours too. The kernel's result is cut back to what was asked for, so that no byte comes from
//! behind the end of the file.
//!
//! A **write** must not be widened: it would bring back what others write beside it, and grow the
//! file. Its first and last part of a block go through the page cache, by a second descriptor
//! (`run.rs`). A direct write beside that could be undone by the page that was read meanwhile. So
//! such a write goes alone (`core/throttle.rs`), and leaves no page behind that is not written
//! back.
//!
//! **Alignment** is the one that `statx(2)` or the device reports, else 4096 bytes. [`examine`] then
//! tries one read; it blocks if the file has no non-blocking reads. A file that refuses or ignores
//! `O_DIRECT` (tmpfs) is served through the page cache.
//!
//! **EINVAL.** A device may need more than it reports. The larger alignment is recorded for the file,
//! and the request is made again. A request that suits every device and still fails with EINVAL is made
//! again through the page cache; if that succeeds, the file has no direct I/O from then on
//! (`Direct::refuse`). A write across `RLIMIT_FSIZE` is no evidence, since the kernel cuts it inside a
//! block: the part below the limit is written, and the error is EFBIG.
//!
//! `device.rs`, `ahead.rs`, `plan.rs` and `edges.rs` lie below operations, which contain their types.
//! `run.rs` and `submit.rs` lie above: they use operations and plain calls.

mod ahead;
mod device;
mod edges;
mod plan;
mod run;
mod submit;

pub(crate) use self::device::{Alignment, Direct, Directness, examine, look};
pub(crate) use self::edges::Edges;
pub(crate) use self::run::run;
pub(crate) use self::submit::{route, write_copies};
