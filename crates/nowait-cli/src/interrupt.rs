//! Ctrl-C, SIGTERM and SIGHUP.

/// Calls `handler`, on a thread of its own, when one of them comes. Those that are ignored stay so:
/// a copy under `nohup` goes on when its terminal is closed, and one that a shell runs in the
/// background when Ctrl-C ends another command.
pub(crate) fn handle(handler: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    nowait_bench::sys::keep_ignored(|| ctrlc::set_handler(handler))
}
