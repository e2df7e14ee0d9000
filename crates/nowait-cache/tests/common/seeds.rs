//! Seeds of a test.

use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The seed of the environment's `SEED`, or the first `count`.
pub(crate) fn seeds(count: u64) -> Range<u64> {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    seed.map_or(0..count, |seed: u64| seed..seed + 1)
}

/// Prints the seed if the test fails.
pub(crate) struct Seed(pub(crate) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SEED={}", self.0);
        }
    }
}

/// Ends the process if the test takes longer than two minutes.
pub(crate) struct Watchdog(Sender<()>);

impl Watchdog {
    pub(crate) fn new() -> Watchdog {
        let (watchdog, end) = channel::<()>();
        let slowness = std::env::var("NOWAIT_TEST_SLOWNESS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        std::thread::spawn(move || {
            if end.recv_timeout(Duration::from_secs(120 * slowness)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the test hangs");
                std::process::abort();
            }
        });
        Watchdog(watchdog)
    }
}
