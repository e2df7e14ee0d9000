//! tokio on Windows, where there is no queue to the kernel that its reactor could watch.

use std::sync::Arc;

use super::queue::Queue;
use crate::error::{Error, ErrorKind, ErrorOp, Result};

/// No runtime has a ring.
#[derive(Clone, Default)]
pub(super) struct Runtimes;

impl Runtimes {
    pub(super) fn queue(&self, _engine: u64) -> Option<Arc<Queue>> {
        None
    }

    pub(super) fn attach(&self) -> Result<()> {
        Err(Error::new(ErrorOp::Other("attach_tokio"), ErrorKind::Unsupported))
    }

    pub(super) fn has_unattached(&self) -> bool {
        false
    }

    pub(super) fn all(&self) -> Vec<Arc<Queue>> {
        Vec::new()
    }

    pub(super) fn close(&self) {}
}
