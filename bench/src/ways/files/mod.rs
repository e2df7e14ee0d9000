//! Ways of reading many files: small ones that are opened, read and closed, and blocks of many that
//! stay open.

mod futures;
mod plain;
pub(super) mod ring;
