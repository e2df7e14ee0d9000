//! Signals: Ctrl-C, SIGTERM and SIGHUP end a command in order, SIGXFSZ ends nothing.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// Makes a write beyond the limit of a file's size (RLIMIT_FSIZE) fail with EFBIG. Its signal would
/// end the process, with its files left behind.
pub(crate) fn survive_file_size_limit() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Calls `handler` on a separate thread for each interrupting signal.
pub(crate) fn handle(mut handler: impl FnMut() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new(interrupting())?;
    let serve = move || signals.forever().for_each(|_| handler());
    thread::Builder::new().name("signals".to_owned()).spawn(serve).map(drop)
}

/// SIGHUP stays ignored where it is: a copy under `nohup` goes on when its terminal is closed. The
/// others are heard: a script that runs this in the background, where shells ignore SIGINT, can
/// still end it in order.
fn interrupting() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let hangup_is_ignored = ignored.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1);
    [SIGINT, SIGTERM].into_iter().chain((!hangup_is_ignored).then_some(SIGHUP)).collect()
}
