//! Ways that put records on stable storage.

pub(super) mod batch;
pub(super) mod commit;
pub(super) mod durable;
mod tasks;
