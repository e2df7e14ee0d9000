//! Notices new commits, including those of other processes.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nowait::Nowait;
use tantivy::directory::{WatchCallback, WatchCallbackList, WatchHandle};

/// The file that each commit replaces.
pub(super) const META_NAME: &str = "meta.json";

/// Polling interval, as in `MmapDirectory`.
const INTERVAL: Duration = Duration::from_millis(500);

/// The callbacks of a directory, and the thread that polls `meta.json`. The first callback starts
/// the thread.
pub(super) struct Watch {
    meta: Arc<Meta>,
    /// Its drop, with the directory, ends the thread.
    thread: Mutex<Option<Sender<()>>>,
}

struct Meta {
    nowait: Nowait,
    path: PathBuf,
    callbacks: WatchCallbackList,
    seen: Mutex<Option<Stamp>>,
}

/// Distinguishes a file from its replacement.
#[derive(Clone, Copy, PartialEq)]
struct Stamp {
    inode: u64,
    length: u64,
    changed: (i64, i64),
}

impl From<Metadata> for Stamp {
    fn from(metadata: Metadata) -> Stamp {
        Stamp { inode: metadata.ino(), length: metadata.len(), changed: (metadata.ctime(), metadata.ctime_nsec()) }
    }
}

impl Watch {
    pub(super) fn new(nowait: &Nowait, root: &Path) -> Watch {
        let (callbacks, seen) = (WatchCallbackList::default(), Mutex::default());
        let meta = Meta { nowait: nowait.clone(), path: root.join(META_NAME), callbacks, seen };
        Watch { meta: Arc::new(meta), thread: Mutex::default() }
    }

    /// Adds a callback. The first one is also called for an existing commit, which may be newer
    /// than the one that the callback's owner has read.
    pub(super) fn subscribe(&self, callback: WatchCallback) -> io::Result<WatchHandle> {
        let handle = self.meta.callbacks.subscribe(callback);
        let mut thread = self.thread();
        if thread.is_none() {
            let (sender, receiver) = channel();
            let meta = self.meta.clone();
            let look = move || {
                meta.check();
                while receiver.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    meta.check();
                }
            };
            thread::Builder::new().name("tantivy-watch".into()).spawn(look)?;
            *thread = Some(sender);
        }
        Ok(handle)
    }

    /// Invokes the callbacks if there is a new commit. Does nothing if no callback was added.
    pub(super) fn check(&self) {
        if self.thread().is_some() {
            self.meta.check();
        }
    }

    fn thread(&self) -> MutexGuard<'_, Option<Sender<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Meta {
    fn check(&self) {
        // Locked during the call, so that only one of two threads reports a commit.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(metadata) = self.nowait.fs().metadata(&self.path).wait() else { return };
        let stamp = Stamp::from(metadata);
        if seen.replace(stamp) != Some(stamp) {
            // The callbacks run on a separate thread. Do not wait for them: a callback may read the
            // index, or commit.
            drop(self.callbacks.broadcast());
        }
    }
}
