//! How an operation is served: the parts of an instance, the route of each operation, and the bound
//! on writes on their way.

pub(crate) mod available;
pub(crate) mod combine;
pub(crate) mod dispatch;
pub(crate) mod inline;
pub(crate) mod instance;

pub(crate) mod policy;
pub(crate) mod throttle;
pub(crate) mod writeback;
