//! Ctrl-C, SIGTERM and SIGHUP.

/// Calls `handler`, on a thread of its own, when one of them comes. SIGHUP stays ignored where it is:
/// a copy under `nohup` goes on when its terminal is closed. The others are heard: a script that runs
/// this in the background, where shells ignore SIGINT, can still end it in order.
pub(crate) fn handle(handler: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    nowait_bench::sys::keep_hangup_ignored(|| ctrlc::set_handler(handler))
}
