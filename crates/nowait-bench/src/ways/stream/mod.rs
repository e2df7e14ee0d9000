//! Ways that take a file in order.

pub mod command;
pub mod ends;
pub mod nowait;
