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
    /// True if the times were more than two seconds old. Younger times may stay equal across a
    /// change: the kernel sets them once per call, before it copies the bytes, from a clock with
    /// ticks of a few milliseconds.
    pub(crate) is_settled: bool,
}

pub(crate) struct Inode {
    /// Unique in the process: the file system may reuse device and inode number for another file.
    pub(crate) number: u64,
    pub(crate) pages: Pages,
    pub(crate) size: AtomicU64,
    /// Locked while the file is compared, so that a thread that finds it unchanged finds no older page.
    pub(crate) stamp: Mutex<Option<Stamp>>,
    /// Reads in flight, by page. While it is locked, no page of the file enters the directory.
    /// Pages may still leave it (eviction, smaller capacity).
    pub(crate) fills: Mutex<HashMap<u64, Arc<Fill>>>,
    pub(crate) counters: Counters,
}
