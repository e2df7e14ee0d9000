//! Ways that put records on stable storage.

pub mod batch;
pub mod commit;
pub mod durable;
pub mod own_ring;
