//! Ways that only scan: they read blocks in ascending order.

pub(super) mod bufreader;
pub(super) mod stream;
pub(super) mod touch;
