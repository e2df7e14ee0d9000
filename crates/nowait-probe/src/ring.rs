//! The ring of a [`Single`](crate::single::Single): one thread sees when each request completes.

use io_uring::{IoUring, cqueue};
use rustix::io::Errno;

/// One request is in flight at a time.
const ENTRIES: u32 = 8;

/// Sets up a ring in which nothing completes between this thread's enters (SINGLE_ISSUER, 6.0;
/// DEFER_TASKRUN, 6.1). On an older kernel it is a plain ring, in which a completion may come at
/// any time.
pub(super) fn set_up() -> Result<IoUring, Errno> {
    let mut plain = IoUring::builder();
    plain.dontfork().setup_clamp();
    let mut best = plain.clone();
    best.setup_single_issuer().setup_defer_taskrun();
    let ring = match best.build(ENTRIES) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => plain.build(ENTRIES),
        ring => ring,
    };
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
    let ring: IoUring = ring.map_err(errno)?;
    // A filter may let a ring be made and not be used.
    ring.submitter().submit().map_err(errno)?;
    Ok(ring)
}

/// Whether the kernel will not be entered for this ring again, such as under a seccomp filter that
/// came later. The rest passes: interruptions, timeouts, shortage of memory or of room for
/// completions.
pub(super) fn is_lasting(error: &std::io::Error) -> bool {
    !matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::TIME | Errno::AGAIN | Errno::BUSY | Errno::NOMEM))
}

/// An operation's result as the kernel puts it: a count, or an errno below zero.
pub(super) fn decode(entry: &cqueue::Entry) -> Result<usize, Errno> {
    match entry.result() {
        n if n >= 0 => Ok(n as usize),
        errno => Err(Errno::from_raw_os_error(-errno)),
    }
}
