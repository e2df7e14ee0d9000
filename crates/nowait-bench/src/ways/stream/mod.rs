//! Ways that take a file in order.

pub(super) mod command;
pub(super) mod ends;
pub(super) mod nowait;
