//! Ways of reading a file and writing to it durably at the same time.

mod futures;
pub(super) mod ring;
pub(super) mod threads;
