//! An instance: its set-up, and the one list of engines.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use crate::core::policy::{HelperSelector, OpenSelector, Policy, Route};
use crate::core::throttle::Throttle;
use crate::direct::Directness;
use crate::engine::libaio::shared::Aio;
use crate::engine::local;
use crate::engine::loop_ring::LoopRing;
use crate::engine::pool::{InstancePool, THREADS_MAX};
use crate::engine::shared::Uring;
use crate::engine::sim::Sim;
use crate::engine::{self};
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::op::{Handle, OpenFile};
use crate::stats::{Counters, Stats};
use crate::sys::PerProcess;

/// The engine for operations that cannot be served inline.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub enum Engine {
    /// io_uring if available; else libaio for direct I/O, if available; else own threads. The
    /// reasons: [`Nowait::ring_refusal`], [`Nowait::aio_refusal`].
    #[default]
    Auto,
    /// io_uring, or an error if it is not available.
    Uring,
    /// libaio for direct I/O, or an error if it is not available; own threads for all else. No
    /// ring. A submission may wait in the kernel for the blocks that say where the data is, or for
    /// a place in the device's queue.
    Aio,
    /// Own threads only.
    Pool,
    /// A simulator: memory files and seeded faults.
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

    /// Allows only non-blocking attempts (`RWF_NOWAIT`) on the caller's thread: no plain call is
    /// run inline on tmpfs, overlayfs or FUSE, whatever it is expected to cost. Default: off.
    pub fn strict(mut self, strict: bool) -> Self {
        self.policy.strict = strict;
        self
    }

    /// Bounds a plain call on the caller's thread, where the file has no non-blocking form: this,
    /// and a nanosecond a byte. One call over it sends the following ones to the pool for a while.
    /// Default: 100 µs.
    pub fn stall_budget(mut self, budget: Duration) -> Self {
        self.policy.budget_ns = budget.as_nanos().min(u128::from(u64::MAX)) as u64;
        self
    }

    /// Bounds the bytes that a future copies from the page cache on its executor's thread. Larger
    /// reads go to the pool, since the copy alone would hold up other tasks. Default: 1 MiB.
    pub fn inline_bytes_max(mut self, bytes: usize) -> Self {
        self.policy.inline_bytes_max = bytes;
        self
    }

    /// Sends every operation by one route: for measuring, and for those who know better.
    /// `Route::Inline` still leaves reads that are not cached to a ring or thread. Default: the
    /// selector chooses for each operation.
    pub fn route(mut self, route: Option<Route>) -> Self {
        self.policy.forced = route;
        self
    }

    /// Bounds the threads of the pool, at least one. They come with work and go after 5 s without.
    /// If none of them ends anything for a second, others serve the files that do not hang.
    /// Default: 64.
    pub fn pool_threads_max(mut self, threads: usize) -> Self {
        self.threads_max = threads.max(1);
        self
    }

    /// Bounds the bytes of writes on their way, for one file and for all: submitted, and not
    /// finished. A writer beyond that waits its turn. Default: 16 MiB and 64 MiB.
    pub fn write_bytes_max(mut self, per_file: u64, per_instance: u64) -> Self {
        self.writes_max = (per_file.max(1), per_instance.max(1));
        self
    }

    /// Makes the instance.
    ///
    /// # Errors
    /// [`ErrorKind::EngineUnavailable`] if [`Engine::Uring`] or [`Engine::Aio`] was asked for and
    /// is not available.
    pub fn build(self) -> Result<Nowait> {
        let instance = Instance {
            policy: self.policy,
            counters: Arc::default(),
            helpers: HelperSelector::default(),
            opens: OpenSelector::default(),
            engine: self.engine,
            pool: Arc::new(InstancePool::new(self.threads_max)),
            writes_max: self.writes_max,
            engines: PerProcess::new(),
        };
        let refusal = match instance.engine {
            Engine::Uring => instance.engines().refusal.as_ref(),
            Engine::Aio => instance.engines().aio().err(),
            _ => None,
        };
        if let Some(refusal) = refusal {
            let error = Error::new(ErrorOp::Build, ErrorKind::EngineUnavailable);
            return Err(error.with_detail(refusal.to_string()));
        }
        Ok(Nowait(Arc::new(instance)))
    }
}

/// An instance: engines, policy and counters. Cheap to clone. Files opened through it share them.
///
/// [`File::open`](crate::File::open) uses an instance that the process shares and that is made on
/// first use. Dropping an instance never waits: operations in flight finish in their own time, and
/// what they need lives until then.
///
/// After a `fork`, the child's first operation makes new engines; operations that were in flight in
/// the parent never complete in the child. A fork in the very moment in which another thread uses
/// the library, or an instance, for the first time may leave the child waiting for that thread for
/// ever: use it once before.
///
/// A future that was begun inside a task of a current-thread tokio runtime (feature `tokio`) that
/// was attached is noticed by that runtime: moved elsewhere, it completes while the runtime runs,
/// or has ended, or when it is `.wait()`ed for.
#[derive(Clone)]
pub struct Nowait(pub(crate) Arc<Instance>);

impl Nowait {
    /// An instance with its own engines, policy and counters.
    pub fn builder() -> Builder {
        let policy = Policy { strict: false, budget_ns: 100_000, forced: None, inline_bytes_max: 1 << 20 };
        Builder { engine: Engine::Auto, policy, threads_max: THREADS_MAX, writes_max: (16 << 20, 64 << 20) }
    }

    /// The instance that `File::open` uses.
    pub fn shared() -> &'static Nowait {
        static SHARED: OnceLock<Nowait> = OnceLock::new();
        SHARED.get_or_init(|| match Nowait::builder().build() {
            Ok(nowait) => nowait,
            // `Engine::Auto` falls back on threads, and those on the caller's own.
            Err(error) => unreachable!("the default engine always exists: {error}"),
        })
    }

    /// Lets the reactor of this tokio runtime notice completions for its tasks, until it ends; else
    /// a thread of the instance does. Call it once in each runtime that was built with `enable_io`
    /// or `enable_all`, as `#[tokio::main]` and `#[tokio::test]` do: inside a task, under
    /// `block_on`, or while the runtime is entered. Where there is no ring it changes nothing.
    ///
    /// Nothing but speed depends on it: completions then need no switch to another thread. It is
    /// not done by itself, since tokio tells whether a runtime has a reactor only by a panic.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] outside of a tokio runtime, or in one that has ended.
    ///
    /// # Panics
    /// In a runtime without `enable_io` or `enable_all`, as tokio's own I/O types do. Do not call
    /// it there: without it everything works on such a runtime.
    #[cfg(feature = "tokio")]
    pub fn attach_tokio(&self) -> Result<()> {
        self.0.engines().ring.attach_tokio().map_err(|error| {
            let advice = "call it inside a tokio runtime that runs and was built with enable_io or enable_all";
            Error::new(ErrorOp::Build, ErrorKind::Unsupported).with_advice(format!("{error}: {advice}"))
        })
    }

    /// Returns the counters since the instance was made. Not a consistent cut while operations are
    /// under way.
    pub fn stats(&self) -> Stats {
        self.0.counters.snapshot()
    }

    /// Why there is no ring; `None` when there is one, or none was asked for.
    pub fn ring_refusal(&self) -> Option<&Refusal> {
        self.0.engines().refusal.as_ref()
    }

    /// Why direct I/O cannot go to libaio; `None` when it can, or need not. Asking sets it up.
    pub fn aio_refusal(&self) -> Option<&Refusal> {
        self.0.engines().aio().err()
    }

    /// The time by the instance's clock: the system's, or that of the simulator it works on.
    pub fn now(&self) -> Instant {
        self.0.sim().map_or_else(Instant::now, Sim::now)
    }

    /// Returns the time since 1970 by the wall clock of the system, or of the instance's simulator.
    /// Returns zero if the clock is before 1970.
    pub fn wall_clock(&self) -> Duration {
        let system = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.0.sim().map_or_else(system, Sim::wall_clock)
    }

    /// Has a thread of the instance notice the completions of all that is in flight. For who is
    /// about to block this thread on anything else (a channel, a condition variable) until an
    /// operation has completed that another thread or task has submitted: the tokio runtime that
    /// should notice it may be the one that is blocked. [`Operation::wait`](crate::Operation::wait) does so itself.
    pub fn notice_by_thread(&self) {
        self.0.engines().ring.lend_all();
    }

    /// True when slow operations can go to io_uring.
    pub fn has_ring(&self) -> bool {
        self.0.engines().has_ring
    }

    /// Waits until nothing that was submitted through this instance is in flight, abandoned
    /// operations included. What other threads stage in their own rings (see
    /// [`block_on`](crate::block_on)) is not waited for: those threads see to it.
    pub fn drain(&self) {
        let engines = self.0.engines();
        loop {
            local::drain();
            engines.ring.drain();
            if let Some(Ok(aio)) = engines.aio.as_ref().and_then(OnceLock::get) {
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

/// Why io_uring or libaio cannot be used, in the kernel's terms.
#[derive(Clone, Debug)]
pub struct Refusal {
    call: &'static str,
    errno: i32,
    entries: u32,
}

const RING: &str = "io_uring_setup";
const AIO: &str = "io_setup";

impl Refusal {
    fn of(call: &'static str, refusal: engine::Refusal) -> Refusal {
        Refusal { call, errno: refusal.errno.raw_os_error(), entries: refusal.entries }
    }

    /// The errno of `io_uring_setup(2)` or `io_setup(2)`.
    pub fn raw_os_error(&self) -> i32 {
        self.errno
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match (self.errno, self.call) {
            (libc::EPERM | libc::EACCES, RING) => {
                "forbidden, by a seccomp filter or the sysctl kernel.io_uring_disabled"
            }
            (libc::EPERM | libc::EACCES, _) => "forbidden, by a seccomp filter",
            (libc::ENOSYS, _) => "not in this kernel, or hidden by a seccomp filter",
            (libc::ENOMEM, RING) => "locked memory is short (ulimit -l), even for the smallest ring",
            (libc::ENOMEM, _) => "memory is short",
            (libc::EMFILE | libc::ENFILE, _) => "too many open files (ulimit -n)",
            (libc::EAGAIN, AIO) => "all that the sysctl fs.aio-max-nr allows is in use (fs.aio-nr says how much)",
            _ => "refused by the kernel",
        };
        write!(f, "{} with {} entries: {why} (os error {})", self.call, self.entries, self.errno)
    }
}

impl LoopRing {
    /// Makes a ring, with a descriptor.
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
    pub(crate) helpers: HelperSelector,
    pub(crate) opens: OpenSelector,
    engine: Engine,
    pool: Arc<InstancePool>,
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
    aio: Option<OnceLock<std::result::Result<Arc<dyn engine::Engine>, Refusal>>>,
}

impl Engines {
    /// The engine for direct I/O.
    pub(crate) fn direct(&self) -> &Arc<dyn engine::Engine> {
        self.aio().unwrap_or(&self.ring)
    }

    /// The engine for direct I/O, or why libaio is refused.
    fn aio(&self) -> std::result::Result<&Arc<dyn engine::Engine>, &Refusal> {
        match &self.aio {
            Some(aio) => aio
                .get_or_init(|| {
                    let aio = Aio::new().map_err(|refusal| Refusal::of(AIO, refusal))?;
                    Ok(Arc::new(aio))
                })
                .as_ref(),
            None => Ok(&self.ring),
        }
    }
}

impl Instance {
    /// The simulator that takes the kernel's place, if one does.
    pub(crate) fn sim(&self) -> Option<&Sim> {
        match &self.engine {
            Engine::Sim(sim) => Some(sim),
            _ => None,
        }
    }

    /// An open file, as this instance's engines know it.
    pub(crate) fn open_file(&self, handle: Handle, directness: Directness) -> OpenFile {
        OpenFile::new(handle, directness, self.counters.clone(), self.pool.clone())
    }

    pub(crate) fn engines(&self) -> &Engines {
        self.engines.get(|| {
            let throttle = Arc::new(Throttle::new(self.writes_max.0, self.writes_max.1));
            if let Engine::Sim(sim) = &self.engine {
                let sim = sim.engine();
                return Engines { ring: sim.clone(), pool: sim, has_ring: false, throttle, refusal: None, aio: None };
            }
            let pool: Arc<dyn engine::Engine> = self.pool.get().clone();
            let ring = match self.engine {
                Engine::Auto | Engine::Uring => Some(Uring::new()),
                _ => None,
            };
            let (ring, refusal): (Option<Arc<dyn engine::Engine>>, _) = match ring {
                Some(Ok(ring)) => (Some(Arc::new(ring)), None),
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
                aio: may_aio.then(OnceLock::new),
            }
        })
    }
}
