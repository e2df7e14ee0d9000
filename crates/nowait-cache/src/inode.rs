//! A file as the cache knows it: one for each inode, however often it is opened.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

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

impl Stamp {
    /// True if size and times are equal.
    pub(crate) fn is_same(&self, other: &Stamp) -> bool {
        Stamp { is_settled: other.is_settled, ..*self } == *other
    }
}

/// What is known of a file since the last comparison.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) stamp: Option<Stamp>,
    /// Shared by the handles that may write. While one exists, the file is not compared.
    pub(crate) writer: Weak<()>,
}

pub(crate) struct Inode {
    /// Unique in the process: the file system may reuse device and inode number for another file.
    pub(crate) number: u64,
    pub(crate) pages: Pages,
    pub(crate) size: AtomicU64,
    /// Locked while the file is compared, so that a thread that finds it unchanged finds no older page.
    pub(crate) known: Mutex<Known>,
    /// Reads in flight, by page. While it is locked, no page of the file enters the directory.
    /// Pages may still leave it (eviction, smaller capacity).
    pub(crate) fills: Mutex<HashMap<u64, Arc<Fill>>>,
    pub(crate) counters: Counters,
}
