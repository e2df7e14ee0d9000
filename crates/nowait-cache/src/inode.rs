//! A file as the cache knows it: one for each inode, however often it is opened.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use crate::counters::Counters;
use crate::fill::Fill;
use crate::pages::Pages;

/// Values by which a change of a file is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    pub(crate) modified: (i64, u64),
    pub(crate) changed: (i64, u64),
    /// The file had not changed for a while. Otherwise it may have changed since, with the same times: the kernel
    /// sets them once for each call, before the bytes, and from a clock that ticks each few milliseconds.
    pub(crate) is_settled: bool,
}

pub(crate) struct Inode {
    /// Unique in the cache; another inode of the file system may get the same device and number later.
    pub(crate) number: u64,
    pub(crate) pages: Pages,
    pub(crate) size: AtomicU64,
    /// Locked while the file is compared, so that who finds it unchanged finds no older page.
    pub(crate) stamp: Mutex<Option<Stamp>>,
    /// Reads in flight by page. While it is locked, no page enters the directory, and none is doomed.
    pub(crate) fills: Mutex<HashMap<u64, Arc<Fill>>>,
    pub(crate) counters: Counters,
}
