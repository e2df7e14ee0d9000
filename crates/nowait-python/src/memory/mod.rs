//! Memory, both ways: what Python lends (`lent.rs`), integers that lie in it (`elements.rs`), and what
//! is lent to Python (`exported.rs`). These files have the `unsafe` of this crate, and no other has.

mod elements;
mod exported;
mod lent;

pub(crate) use self::elements::{Elements, Integer, elements};
pub(crate) use self::exported::{Buffer, Mapping, View};
pub(crate) use self::lent::{Loan, NewBytes, duplicate, end, has_buffer, pending_releases, release_pending};
