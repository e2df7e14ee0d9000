//! Hard links: the first name of a file is copied, the others are linked to the copy.

use std::collections::HashMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::dir::{Dir, Identity};
use crate::meter::lock;

/// A name of the source that waits for the copy of its file.
pub(super) struct Waiter {
    pub dir: Arc<Dir>,
    pub source_name: CString,
    pub target_name: CString,
}

/// The copy of a file with several names, by path, since one descriptor for each would be too many.
#[derive(Clone)]
pub(super) struct Copy {
    pub identity: Identity,
    pub path: PathBuf,
}

/// First copy of a file with several names.
enum FirstCopy {
    Copying(Vec<Waiter>),
    /// The copy, and the number of names of the source not met yet.
    Copied(Copy, u64),
}

/// Action for a name.
pub(super) enum LinkAction {
    /// Copy the file, then call [`Links::finished`].
    Copy,
    /// Link it to this copy.
    Link(Copy, Waiter),
    /// No action: the thread that copies the file links this name.
    Wait,
}

/// Files with several names of which at least one was met.
#[derive(Default)]
pub(super) struct Links(Mutex<HashMap<Identity, FirstCopy>>);

impl Links {
    /// Returns the action for a name.
    pub(super) fn meet(&self, source: Identity, waiter: Waiter) -> LinkAction {
        let mut files = lock(&self.0);
        match files.get_mut(&source) {
            None => {
                files.insert(source, FirstCopy::Copying(Vec::new()));
                LinkAction::Copy
            }
            Some(FirstCopy::Copying(waiters)) => {
                waiters.push(waiter);
                LinkAction::Wait
            }
            Some(FirstCopy::Copied(copy, left)) => {
                let copy = copy.clone();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    files.remove(&source);
                }
                LinkAction::Link(copy, waiter)
            }
        }
    }

    /// Records that the file was copied; returns the names to link. `names` is the number of the
    /// source's names.
    pub(super) fn finished(&self, source: Identity, copy: Copy, names: u64) -> Vec<Waiter> {
        let mut files = lock(&self.0);
        let Some(FirstCopy::Copying(waiters)) = files.remove(&source) else { return Vec::new() };
        let left = names.saturating_sub(1 + waiters.len() as u64);
        if left > 0 {
            files.insert(source, FirstCopy::Copied(copy, left));
        }
        waiters
    }

    /// Records that the copy failed; returns the waiting names, each of which must be copied
    /// separately.
    pub(super) fn failed(&self, source: Identity) -> Vec<Waiter> {
        match lock(&self.0).remove(&source) {
            Some(FirstCopy::Copying(waiters)) => waiters,
            _ => Vec::new(),
        }
    }
}
