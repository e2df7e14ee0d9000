//! How a store reads and writes.

use nowait::Nowait;

/// Default of [`Options::piece_bytes_max`].
const PIECE_BYTES_MAX: u64 = 16 << 20;

/// Options of a store. The defaults match `LocalFileSystem` without options.
#[derive(Clone)]
pub struct Options {
    pub(crate) nowait: Nowait,
    pub(crate) gap_bytes: u64,
    pub(crate) direct: bool,
    pub(crate) piece_bytes_max: u64,
    pub(crate) durable: bool,
    pub(crate) automatic_cleanup: bool,
    #[cfg(feature = "cache")]
    pub(crate) cache: Option<nowait_cache::PageCache>,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// Returns the defaults, on the shared instance of the process.
    pub fn new() -> Self {
        Options {
            nowait: Nowait::shared().clone(),
            gap_bytes: 0,
            direct: false,
            piece_bytes_max: PIECE_BYTES_MAX,
            durable: false,
            automatic_cleanup: false,
            #[cfg(feature = "cache")]
            cache: None,
        }
    }

    /// Uses this instance.
    pub fn instance(mut self, nowait: &Nowait) -> Self {
        self.nowait = nowait.clone();
        self
    }

    /// Merges ranges of `get_ranges` that are at most this many bytes apart, unless the merged read
    /// would be twice as large as the ranges. Default: 0, which merges only ranges that touch or
    /// overlap. On a local device, a larger value rarely pays.
    pub fn gap_bytes(mut self, bytes: u64) -> Self {
        self.gap_bytes = bytes;
        self
    }

    /// Bypasses the page cache (`O_DIRECT`) for reads, multipart uploads and puts, if the file
    /// system supports it. Use it for data that is larger than memory, or that another layer
    /// caches.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Reads through this cache, and bypasses the kernel's page cache (`O_DIRECT`) where possible.
    /// Stores may share a cache. Gets that are larger than
    /// [`piece_bytes_max`](Options::piece_bytes_max) bypass it, and so do ranges of more than half of
    /// its capacity.
    ///
    /// Bytes are copied out of the cache: a consumer that keeps them pins no page. An object that
    /// is replaced is another file. Each get compares the file's size and times (`fstat(2)`, on the
    /// executor's thread), so a file that was changed in place is read again. A file that has changed
    /// within two seconds is read again at each get.
    #[cfg(feature = "cache")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cache")))]
    pub fn cache(mut self, cache: &nowait_cache::PageCache) -> Self {
        self.cache = Some(cache.clone());
        self
    }

    /// Limits the memory of one get. A get of up to `bytes` is read as one piece, which `bytes()`
    /// returns without a copy. A larger get is a stream of pieces of at most 1 MiB, which are read
    /// ahead of the consumer. Default: 16 MiB. A `get_ranges` needs memory for the sum of its
    /// ranges.
    pub fn piece_bytes_max(mut self, bytes: u64) -> Self {
        self.piece_bytes_max = bytes;
        self
    }

    /// Makes objects and their names durable before a put, completed upload, copy or rename
    /// returns. Default: false, as with `LocalFileSystem`: after a power loss an object may be
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
