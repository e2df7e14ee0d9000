//! libaio, for direct I/O where io_uring is refused.

pub(crate) mod shared;
pub(crate) mod sys;
