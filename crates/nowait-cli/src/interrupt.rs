//! Signals: Ctrl-C, SIGTERM and SIGHUP end a command in order, SIGXFSZ ends nothing.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// Makes a write beyond the limit of a file's size (RLIMIT_FSIZE) fail with EFBIG. Its signal would
/// end the process, with its files left behind.
pub(crate) fn survive_file_size_limit() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Returns a flag that interrupting signals set. Calls of the kernel that they interrupt go on.
pub(crate) fn interrupted() -> io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in interrupting() {
        flag::register(signal, interrupted.clone())?;
    }
    Ok(interrupted)
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
