//! Memory lent by Python (`lent.rs`), integers in such memory (`elements.rs`), and memory lent to
//! Python (`exported.rs`).

mod elements;
mod exported;
mod lent;

pub(crate) use self::elements::{Elements, Integer, elements};
pub(crate) use self::exported::{Buffer, Mapping, View};
pub(crate) use self::lent::{Loan, NewBytes, end, has_buffer, pending_releases, release_pending};
