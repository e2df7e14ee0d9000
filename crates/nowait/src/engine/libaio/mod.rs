//! libaio, for direct I/O where io_uring cannot be had.

pub(crate) mod shared;
pub(crate) mod sys;
