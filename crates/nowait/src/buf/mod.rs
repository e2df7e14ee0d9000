//! Memory that the kernel may read or write: the library's own aligned, pooled [`Buf`], the buffers
//! that callers bring, and [`Part`]s of one larger memory.
//!
//! All of it moves into the operation and stays there until the completion ([`Memory`]). A buffer's
//! bytes are on the heap, so that moving its owner does not move them. They are initialised at all
//! times.

mod cursor;
mod lent;
pub(crate) mod mapping;
mod memory;
mod part;
mod pooled;
mod vectored;

pub(crate) use self::cursor::{Direction, TransferCursor};
pub use self::lent::Lent;
pub(crate) use self::memory::{Erased, Memory};
pub use self::memory::{ReadBuffer, WriteBuffer};
pub(crate) use self::part::Part;
pub use self::pooled::{BUF_ALIGNMENT, Buf};
pub use self::vectored::{ReadBuffers, WriteBuffers};
