//! Stops tokio's paused clock while operations are in flight (feature `tokio-test-util`).
//!
//! A paused clock (`tokio::time::pause`) jumps to the next timer when its runtime has nothing to
//! run. So a timeout would expire before an operation that waits for its device. The clock does not
//! jump while the runtime runs a blocking task, as operations of `tokio::fs` are. Here one blocking
//! task of a runtime stands for all operations that were begun in that runtime.

#[cfg(feature = "tokio-test-util")]
pub(crate) use self::held::Held;

/// Stops the clock of this thread's runtime until it is dropped, if the clock is paused.
#[cfg(not(feature = "tokio-test-util"))]
pub(crate) struct Held;

/// The callback of an operation runs while this lives.
#[cfg(not(feature = "tokio-test-util"))]
pub(crate) struct Followed;

#[cfg(not(feature = "tokio-test-util"))]
impl Held {
    #[inline]
    pub(crate) fn here() -> Held {
        Held
    }

    #[inline]
    pub(crate) fn follow(&self) -> Followed {
        Followed
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
        /// Blocking task of the runtime that this thread was in last.
        static KNOWN: RefCell<Weak<Blocking>> = const { RefCell::new(Weak::new()) };
        /// Blocking task of the operation whose callback runs here. Operations that the callback
        /// begins share it.
        static FOLLOWED: RefCell<Option<Arc<Blocking>>> = const { RefCell::new(None) };
    }

    /// Stops the clock of this thread's runtime until it is dropped, if the clock is paused.
    pub(crate) struct Held(Option<Arc<Blocking>>);

    impl Held {
        pub(crate) fn here() -> Held {
            let Ok(runtime) = Handle::try_current() else {
                return Held(FOLLOWED.try_with(|followed| followed.borrow().clone()).unwrap_or_default());
            };
            // Only current-thread runtimes have a clock that can be paused.
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

        /// Begins the operation's callback, which may panic, on this thread.
        pub(crate) fn follow(&self) -> Followed {
            Followed(exchange(self.0.clone()))
        }
    }

    /// The callback of an operation runs while this lives; has what this thread followed before.
    pub(crate) struct Followed(Option<Arc<Blocking>>);

    impl Drop for Followed {
        fn drop(&mut self) {
            drop(exchange(self.0.take()));
        }
    }

    fn exchange(followed: Option<Arc<Blocking>>) -> Option<Arc<Blocking>> {
        FOLLOWED.try_with(|place| place.replace(followed)).unwrap_or_default()
    }

    /// Returns whether tokio's clock is paused. tokio has no call for this: a running clock equals
    /// std's.
    fn is_paused() -> bool {
        let before = std::time::Instant::now();
        let told = tokio::time::Instant::now().into_std();
        told < before || told > std::time::Instant::now()
    }

    /// Symptom: the clock stood still after a callback that panicked, until its thread ended.
    #[test]
    fn a_callback_that_panics_leaves_the_clock_as_it_was() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            let held = Held::here();
            assert!(held.0.is_some());
            let callback = || {
                let _followed = held.follow();
                assert!(FOLLOWED.with(|followed| followed.borrow().is_some()));
                panic!("on purpose");
            };
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(callback)).is_err());
            assert!(FOLLOWED.with(|followed| followed.borrow().is_none()));
        });
    }
}
