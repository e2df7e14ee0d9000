//! An instance: its set-up, and the one list of engines.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "forced-routes")]
use crate::core::policy::Route;
use crate::core::policy::{OpenSelector, Policy};
use crate::core::throttle::Throttle;
use crate::direct::Directness;
use crate::engine::local;
use crate::engine::loop_ring::LoopRing;
use crate::engine::pool::{Pools, THREADS_MAX};
use crate::engine::shared::SharedQueues;
#[cfg(feature = "sim")]
use crate::engine::sim::Sim;
use crate::engine::{self};
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::op::left;
use crate::op::{Handle, OpenFile};
use crate::stats::{Counters, Stats};
use crate::sys::{self, Errno, PerProcess, WriteOnce};

/// Engine for operations that cannot be served inline.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub enum Engine {
    /// io_uring if available; else libaio for direct I/O, if available; else pool threads.
    /// [`Nowait::ring_refusal`] and [`Nowait::aio_refusal`] return the reasons.
    #[default]
    Auto,
    /// io_uring, or an error if it is not available.
    Uring,
    /// libaio for direct I/O, or an error if it is not available; pool threads for all else. A
    /// submission may block in the kernel for file-system metadata, or for a place in the device's
    /// queue.
    Aio,
    /// Pool threads only.
    Pool,
    /// A simulator: files in memory, and seeded faults.
    #[cfg(feature = "sim")]
    Sim(Sim),
}

/// Sets up an instance; see [`Nowait::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    engine: Engine,
    policy: Policy,
    threads_max: usize,
    writes_max: (u64, u64),
}

impl Builder {
    /// Sets the engine for operations that cannot be served inline. Default: [`Engine::Auto`].
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Allows only non-blocking reads (`RWF_NOWAIT`) on the polling thread. Writes go to the pool,
    /// since even a non-blocking write waits while its file system is frozen. On tmpfs, overlayfs or
    /// FUSE, reads go to the pool, too. Default: off.
    pub fn strict(mut self, strict: bool) -> Self {
        self.policy.strict = strict;
        self
    }

    /// Bounds the time of an inline plain call on a file without non-blocking calls, to `budget`
    /// plus 1 ns per byte. The first plain call to a device goes to the pool. After a call that took
    /// longer than the budget, the following ones go to the pool for a while. Default: 100 µs.
    pub fn stall_budget(mut self, budget: Duration) -> Self {
        self.policy.budget_ns = budget.as_nanos().min(u128::from(u64::MAX)) as u64;
        self
    }

    /// Bounds the bytes that a future copies from the page cache on its executor's thread. Larger
    /// reads go to the pool, since the copy alone would delay other tasks. Default: 1 MiB.
    pub fn inline_bytes_max(mut self, bytes: usize) -> Self {
        self.policy.inline_bytes_max = bytes;
        self
    }

    /// Forces one route for all operations, for measurements. Even with `Route::Inline`, reads that
    /// are not cached go to a ring or a pool thread. Default: the selector chooses for each
    /// operation.
    #[cfg(feature = "forced-routes")]
    pub fn route(mut self, route: Option<Route>) -> Self {
        self.policy.forced = route;
        self
    }

    /// Sets the maximum number of pool threads for each device, at least 1. Opens and operations on
    /// names share one more pool. Threads start on demand, and end after 5 s without work. If a
    /// pool completes nothing for 1 s, additional threads serve the files that do not hang.
    /// Default: 64.
    pub fn pool_threads_max(mut self, threads: usize) -> Self {
        self.threads_max = threads.max(1);
        self
    }

    /// Bounds the bytes of writes in flight, per file and per instance. A write above a bound waits
    /// in a queue. Default: 16 MiB and 64 MiB.
    pub fn write_bytes_max(mut self, per_file: u64, per_instance: u64) -> Self {
        self.writes_max = (per_file.max(1), per_instance.max(1));
        self
    }

    /// Makes the instance.
    ///
    /// # Errors
    /// [`ErrorKind::EngineUnavailable`] if [`Engine::Uring`] or [`Engine::Aio`] was requested and
    /// is not available.
    pub fn build(self) -> Result<Nowait> {
        let instance = Instance {
            policy: self.policy,
            counters: Arc::default(),
            opens: OpenSelector::default(),
            engine: self.engine,
            pools: Arc::new(Pools::new(self.threads_max)),
            writes_max: self.writes_max,
            engines: PerProcess::new(),
        };
        let refusal = match instance.engine {
            Engine::Uring => instance.engines().ring_refusal(),
            Engine::Aio => instance.engines().aio_refusal(),
            _ => None,
        };
        if let Some(refusal) = refusal {
            let error = Error::new(ErrorOp::Build, ErrorKind::EngineUnavailable);
            return Err(error.with_detail(refusal.to_string()));
        }
        Ok(Nowait(Arc::new(instance)))
    }
}

/// Instance of the library: engines, policy and counters, shared by the files opened through it.
/// Cheap to clone.
///
/// [`File::open`](crate::File::open) uses an instance that the process shares, made on first use.
/// Dropping an instance never blocks: operations in flight complete in the background, and their
/// resources live until then.
///
/// After a `fork`, the child's first operation makes new engines; operations that were in flight in
/// the parent never complete in the child. A fork during another thread's first use of the library,
/// or of an instance, may make the child hang: use both once before the fork.
///
/// With the feature `tokio`, an attached current-thread runtime reaps the completions of futures
/// that its tasks began. A future that moved to another executor completes only while that runtime
/// runs, after it has ended, or in [`Started::wait`](crate::Started::wait).
#[derive(Clone)]
pub struct Nowait(pub(crate) Arc<Instance>);

impl Nowait {
    /// Returns a builder of an instance with its own engines, policy and counters.
    pub fn builder() -> Builder {
        let policy = Policy { strict: false, budget_ns: 100_000, forced: None, inline_bytes_max: 1 << 20 };
        Builder { engine: Engine::Auto, policy, threads_max: THREADS_MAX, writes_max: (16 << 20, 64 << 20) }
    }

    /// Returns the instance that `File::open` uses.
    pub fn shared() -> &'static Nowait {
        static SHARED: WriteOnce<Nowait> = WriteOnce::new();
        SHARED.get_or_init(|| match Nowait::builder().build() {
            Ok(nowait) => nowait,
            // `Engine::Auto` falls back on threads, and those on the caller's own.
            Err(error) => unreachable!("the default engine always exists: {error}"),
        })
    }

    /// Makes this tokio runtime's reactor reap completions for its tasks, in place of a thread of
    /// the instance. Call it once in each runtime that was built with `enable_io` or `enable_all`,
    /// as by `#[tokio::main]` and `#[tokio::test]`. Call it inside a task, under `block_on`, or
    /// while the runtime is entered. Without io_uring it has no effect.
    ///
    /// The call affects only speed: completions then need no switch to another thread. The library
    /// cannot attach automatically, since tokio reports a missing reactor only by a panic.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] outside of a tokio runtime, in one that has ended, or in one that
    /// was built without `enable_io` or `enable_all`. Operations work in all of these without this
    /// call. The errors of `eventfd(2)` and `epoll_ctl(2)`: too many open files, no memory, or
    /// [`ErrorKind::NoSpace`] if the user has the maximum number of epoll watches.
    ///
    /// # Panics
    /// In a runtime without `enable_io` or `enable_all`, tokio panics. The call catches the panic
    /// and returns the error, but the panic hook has already printed tokio's message. A program
    /// built with `panic = "abort"` ends there.
    #[cfg(feature = "tokio")]
    pub fn attach_tokio(&self) -> Result<()> {
        self.0.engines().ring.attach_tokio()
    }

    /// Returns the counters since the instance was made. While operations are in flight, the
    /// counters may be inconsistent with each other.
    pub fn stats(&self) -> Stats {
        self.0.counters.snapshot()
    }

    /// Returns why io_uring is not available; `None` if it is, or if it was not requested.
    ///
    /// If descriptors are short (EMFILE, ENFILE), the instance tries again at intervals, and
    /// returns `None` once it has a ring.
    pub fn ring_refusal(&self) -> Option<&Refusal> {
        self.0.engines().ring_refusal()
    }

    /// Returns why libaio is not available for direct I/O; `None` if it is, or if it is not needed.
    /// The call initialises libaio. A shortage (EAGAIN, EMFILE, ENFILE, ENOMEM) is tried again as in
    /// [`Nowait::ring_refusal`].
    pub fn aio_refusal(&self) -> Option<&Refusal> {
        self.0.engines().aio_refusal()
    }

    /// Returns true if slow operations can go to io_uring.
    pub fn has_ring(&self) -> bool {
        self.0.engines().has_ring && self.ring_refusal().is_none()
    }

    /// Returns a sentence for each condition that slows this instance: io_uring is refused, or
    /// futures of a tokio runtime that is not attached (`attach_tokio`, feature `tokio`) went to a
    /// ring. A program may print the sentences once, for example after it has warmed up.
    ///
    /// ```
    /// for sentence in nowait::Nowait::shared().advice() {
    ///     eprintln!("nowait: {sentence}");
    /// }
    /// ```
    pub fn advice(&self) -> Vec<String> {
        let refused = |refusal: &Refusal| format!("io_uring is refused, so cold reads cost a thread switch: {refusal}");
        let advice = self.ring_refusal().map(refused);
        #[cfg(feature = "tokio")]
        let advice = advice.into_iter().chain(self.0.engines().ring.has_unattached_runtime().then(|| {
            "a tokio runtime is not attached, so each completion costs a thread switch: call Nowait::attach_tokio \
             in a runtime that was built with enable_io or enable_all"
                .to_owned()
        }));
        advice.into_iter().collect()
    }

    /// Blocks until no operation submitted through this instance is in flight, including abandoned
    /// ones. It does not wait for operations that other threads have staged in their own rings (see
    /// [`block_on`](crate::block_on)).
    pub fn drain(&self) {
        let engines = self.0.engines();
        loop {
            left::hand_over();
            local::drain();
            engines.ring.drain();
            if let Some((Some(aio), _)) = engines.aio.as_ref().and_then(WriteOnce::get) {
                aio.drain();
            }
            engines.pool.drain();
            // Writes that waited their turn were submitted by those that have ended.
            if engines.throttle.is_quiet() {
                return;
            }
            // Some are on the ring of a thread that is at work there.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl fmt::Debug for Nowait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nowait").field("engine", &self.0.engine).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Reason why io_uring or libaio cannot be used, in the kernel's terms.
#[derive(Clone, Debug)]
pub struct Refusal {
    call: &'static str,
    errno: i32,
    entries: u32,
}

const RING: &str = "io_uring_setup";
const AIO: &str = "io_setup";

impl Refusal {
    fn of(call: &'static str, refusal: engine::QueueRefusal) -> Refusal {
        Refusal { call, errno: refusal.errno.raw_os_error(), entries: refusal.entries }
    }

    /// Returns the errno of `io_uring_setup(2)` or `io_setup(2)`.
    pub fn raw_os_error(&self) -> i32 {
        self.errno
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = sys::why_refused(Errno::from_raw_os_error(self.errno), self.call == RING);
        write!(f, "{} with {} entries: {why} (os error {})", self.call, self.entries, self.errno)
    }
}

impl LoopRing {
    /// Creates a ring, which uses one file descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::EngineUnavailable`] if io_uring is not available, or descriptors or locked memory
    /// are short.
    pub fn new() -> Result<LoopRing> {
        LoopRing::set_up().map_err(|refusal| {
            let refusal = Refusal::of(RING, refusal);
            Error::new(ErrorOp::Build, ErrorKind::EngineUnavailable).with_detail(refusal.to_string())
        })
    }
}

pub(crate) struct Instance {
    pub(crate) policy: Policy,
    pub(crate) counters: Arc<Counters>,
    pub(crate) opens: OpenSelector,
    engine: Engine,
    pub(crate) pools: Arc<Pools>,
    writes_max: (u64, u64),
    engines: PerProcess<Engines>,
}

/// The engines that an instance submits to. Without a ring, `ring` is the pool again, so that
/// callers need not ask.
pub(crate) struct Engines {
    pub(crate) ring: Arc<dyn engine::Engine>,
    pub(crate) pool: Arc<dyn engine::Engine>,
    pub(crate) has_ring: bool,
    pub(crate) throttle: Arc<Throttle>,
    refusal: Option<Refusal>,
    /// libaio for direct I/O, if it may be used: set up on first use, since contexts are few in a
    /// system.
    aio: Option<WriteOnce<MadeOrRefused>>,
}

/// An engine, unless it is refused for good, and why it is or was refused.
type MadeOrRefused = (Option<Arc<dyn engine::Engine>>, Option<Refusal>);

impl Engines {
    /// The engine for direct I/O.
    pub(crate) fn direct(&self) -> &Arc<dyn engine::Engine> {
        self.aio().and_then(|(aio, _)| aio.as_ref()).unwrap_or(&self.ring)
    }

    /// Why there is no ring, or none yet.
    fn ring_refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref().filter(|_| !self.has_ring || self.ring.is_refused())
    }

    /// Why there is no libaio, or none yet.
    fn aio_refusal(&self) -> Option<&Refusal> {
        let (aio, refusal) = self.aio()?;
        refusal.as_ref().filter(|_| aio.as_ref().is_none_or(|aio| aio.is_refused()))
    }

    /// libaio, if it may be used.
    fn aio(&self) -> Option<&MadeOrRefused> {
        let set_up = || match SharedQueues::libaio() {
            Ok((aio, refusal)) => (Some(Arc::new(aio) as _), refusal.map(|refusal| Refusal::of(AIO, refusal))),
            Err(refusal) => (None, Some(Refusal::of(AIO, refusal))),
        };
        self.aio.as_ref().map(|aio| aio.get_or_init(set_up))
    }
}

impl Instance {
    /// The simulator that takes the kernel's place, if one does.
    #[cfg(feature = "sim")]
    pub(crate) fn sim(&self) -> Option<&Sim> {
        match &self.engine {
            Engine::Sim(sim) => Some(sim),
            _ => None,
        }
    }

    pub(crate) fn open_file(&self, handle: Handle, path: Arc<Path>, directness: Directness) -> OpenFile {
        OpenFile::new(handle, path, directness, self.counters.clone(), self.pools.clone())
    }

    pub(crate) fn engines(&self) -> &Engines {
        self.engines.get(|| {
            let throttle = Arc::new(Throttle::new(self.writes_max.0, self.writes_max.1));
            #[cfg(feature = "sim")]
            if let Engine::Sim(sim) = &self.engine {
                let sim = sim.engine();
                return Engines { ring: sim.clone(), pool: sim, has_ring: false, throttle, refusal: None, aio: None };
            }
            let pool: Arc<dyn engine::Engine> = self.pools.clone();
            let ring = match self.engine {
                Engine::Auto | Engine::Uring => Some(SharedQueues::rings()),
                _ => None,
            };
            let (ring, refusal): (Option<Arc<dyn engine::Engine>>, _) = match ring {
                Some(Ok((ring, refusal))) => (Some(Arc::new(ring)), refusal.map(|refusal| Refusal::of(RING, refusal))),
                Some(Err(refusal)) => (None, Some(Refusal::of(RING, refusal))),
                None => (None, None),
            };
            let may_aio = ring.is_none() && !matches!(self.engine, Engine::Pool);
            Engines {
                has_ring: ring.is_some(),
                ring: ring.unwrap_or_else(|| pool.clone()),
                pool,
                throttle,
                refusal,
                aio: may_aio.then(WriteOnce::new),
            }
        })
    }
}
