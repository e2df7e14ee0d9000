//! How a store reads and writes.

use nowait::Nowait;

/// Largest get that is read as one piece, unless [`Options::piece_bytes_max`] says otherwise.
const PIECE_BYTES_MAX: u64 = 16 << 20;

/// How a store reads and writes. The default does what `LocalFileSystem` does without options.
#[derive(Clone)]
pub struct Options {
    pub(crate) nowait: Nowait,
    pub(crate) gap_bytes: u64,
    pub(crate) direct: bool,
    pub(crate) piece_bytes_max: u64,
    pub(crate) durable: bool,
    pub(crate) automatic_cleanup: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// The defaults, on the instance that the process shares.
    pub fn new() -> Self {
        Options {
            nowait: Nowait::shared().clone(),
            gap_bytes: 0,
            direct: false,
            piece_bytes_max: PIECE_BYTES_MAX,
            durable: false,
            automatic_cleanup: false,
        }
    }

    /// Works on this instance.
    pub fn instance(mut self, nowait: &Nowait) -> Self {
        self.nowait = nowait.clone();
        self
    }

    /// Reads ranges of `get_ranges` together that are at most this many bytes apart, unless that
    /// would read twice what was asked for. Default: 0, only ranges that touch or overlap. On a
    /// local device more rarely pays.
    pub fn gap_bytes(mut self, bytes: u64) -> Self {
        self.gap_bytes = bytes;
        self
    }

    /// Reads objects, and writes multipart uploads and puts, past the page cache where the file
    /// system can (`O_DIRECT`). For data that are larger than memory, or that something else
    /// caches.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Memory of one get: up to this many bytes are read at once, as one piece that `bytes()`
    /// returns without a copy. More is read ahead of its consumer as a stream of pieces, of at most
    /// 1 MiB. Default: 16 MiB. The memory of `get_ranges` is what its ranges add up to.
    pub fn piece_bytes_max(mut self, bytes: u64) -> Self {
        self.piece_bytes_max = bytes;
        self
    }

    /// Makes objects, and their names, durable before a put, a completed upload, a copy or a rename
    /// is ready. Default: false, as with `LocalFileSystem`: after a power loss an object may be
    /// missing or empty.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Removes directories that a delete leaves empty, up to the store's root. Default: false.
    pub fn automatic_cleanup(mut self, cleanup: bool) -> Self {
        self.automatic_cleanup = cleanup;
        self
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("gap_bytes", &self.gap_bytes)
            .field("direct", &self.direct)
            .field("piece_bytes_max", &self.piece_bytes_max)
            .field("durable", &self.durable)
            .field("automatic_cleanup", &self.automatic_cleanup)
            .finish_non_exhaustive()
    }
}
