//! How an operation is served: what an instance is made of, which way each operation goes, and what bounds writes on their way.

pub(crate) mod coalesce;
pub(crate) mod dispatch;
pub(crate) mod inline;
pub(crate) mod instance;
pub(crate) mod memory;
pub(crate) mod opened;
pub(crate) mod policy;
pub(crate) mod throttle;
pub(crate) mod writeback;
