//! tokio's paused clock is held while operations are under way (feature `tokio-test-util`).
//!
//! A paused clock (`tokio::time::pause`) jumps to the next timer when its runtime has nothing to
//! run, so that a timeout ends before an operation that waits for its device. The exception is a
//! runtime in which a blocking task runs: operations of `tokio::fs` are such tasks. Here one
//! blocking task of a runtime stands for all operations that were begun there.

#[cfg(feature = "tokio-test-util")]
pub(super) use self::held::Held;

/// Holds the clock of the runtime that this thread is in, if that is paused, until it is dropped.
#[cfg(not(feature = "tokio-test-util"))]
pub(super) struct Held;

#[cfg(not(feature = "tokio-test-util"))]
impl Held {
    #[inline]
    pub(super) fn here() -> Held {
        Held
    }

    #[inline]
    pub(super) fn during(&self, call: impl FnOnce()) {
        call();
    }
}

#[cfg(feature = "tokio-test-util")]
mod held {
    use std::cell::RefCell;
    use std::convert::Infallible;
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Arc, Weak};

    use tokio::runtime::{Handle, Id, RuntimeFlavor};

    /// A blocking task of a runtime, which ends when this is dropped.
    struct Blocking {
        runtime: Id,
        _ends: Sender<Infallible>,
    }

    thread_local! {
        /// That of the runtime that this thread was in last.
        static KNOWN: RefCell<Weak<Blocking>> = const { RefCell::new(Weak::new()) };
        /// That of the operation whose callback runs here: what the callback begins goes on for it.
        static FOLLOWED: RefCell<Option<Arc<Blocking>>> = const { RefCell::new(None) };
    }

    /// Holds the clock of the runtime that this thread is in, if that is paused, until it is
    /// dropped.
    pub(in super::super) struct Held(Option<Arc<Blocking>>);

    impl Held {
        pub(in super::super) fn here() -> Held {
            let Ok(runtime) = Handle::try_current() else {
                return Held(FOLLOWED.try_with(|followed| followed.borrow().clone()).unwrap_or_default());
            };
            // Others have no clock that can be paused.
            if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread || !is_paused() {
                return Held(None);
            }
            let known = KNOWN.try_with(|known| known.borrow().upgrade()).unwrap_or_default();
            if let Some(known) = known.filter(|known| known.runtime == runtime.id()) {
                return Held(Some(known));
            }
            let (ends, ended) = channel::<Infallible>();
            runtime.spawn_blocking(move || {
                let _ = ended.recv();
            });
            let blocking = Arc::new(Blocking { runtime: runtime.id(), _ends: ends });
            let _ = KNOWN.try_with(|known| known.replace(Arc::downgrade(&blocking)));
            Held(Some(blocking))
        }

        /// Calls the operation's callback.
        pub(in super::super) fn during(&self, call: impl FnOnce()) {
            let exchange = |followed| FOLLOWED.try_with(|place| place.replace(followed)).unwrap_or_default();
            let before = exchange(self.0.clone());
            call();
            drop(exchange(before));
        }
    }

    /// tokio does not tell; a running clock is that of std.
    fn is_paused() -> bool {
        let before = std::time::Instant::now();
        let told = tokio::time::Instant::now().into_std();
        told < before || told > std::time::Instant::now()
    }
}
