//! `nowait log tail`: the last records of a log, and those that come.

use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use nowait_log::{FollowFrom, Followed, Follower, follow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Result, is_open, print};
use crate::cli::{self, Failure};
use crate::show::complain;

/// Time until the end is looked at again: it doubles while nothing comes.
const DELAY_MIN: Duration = Duration::from_millis(1);
const DELAY_MAX: Duration = Duration::from_millis(100);

pub(super) fn tail(options: &cli::Tail) -> Result<()> {
    let interrupted = if options.follow { Some(interrupts()?) } else { None };
    let mut follower = super::of_log(&options.dir, follow(&options.dir, FollowFrom::Last(options.count)).wait())?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut delay = DELAY_MIN;
    loop {
        let Some(is_record) = print_next(&mut follower, options.json, &mut out)? else { return Ok(()) };
        if is_record {
            delay = DELAY_MIN;
            if interrupted.as_ref().is_some_and(|interrupted| interrupted.try_recv().is_ok()) {
                return end(&mut out);
            }
            continue;
        }
        let Some(interrupted) = &interrupted else {
            // What is whole now counts, whatever the writer has said of it so far.
            follower.settle()?;
            match print_next(&mut follower, options.json, &mut out)? {
                Some(true) => continue,
                _ => return is_open(out.flush()).map(drop),
            }
        };
        if !is_open(out.flush())? || !is_read(out.get_ref()) {
            return Ok(());
        }
        match interrupted.recv_timeout(delay) {
            Err(RecvTimeoutError::Timeout) => delay = (delay * 2).min(DELAY_MAX),
            _ => return end(&mut out),
        }
    }
}

/// False when whoever reads the output has gone: an idle log has nothing to print that would fail.
fn is_read(out: &impl AsFd) -> bool {
    let mut output = [PollFd::new(out, PollFlags::empty())];
    // Where it cannot be told, the next record tells.
    poll(&mut output, Some(&Timespec::default())).is_err() || !output[0].revents().contains(PollFlags::ERR)
}

/// Receives a message for each Ctrl-C, SIGTERM and SIGHUP.
fn interrupts() -> Result<Receiver<()>> {
    let (send, receive) = mpsc::channel();
    // Nobody receives after the end.
    let handler = move || send.send(()).unwrap_or_default();
    crate::interrupt::handle(handler)
        .map_err(|error| Failure { code: 1, message: format!("cannot handle Ctrl-C: {error}") })?;
    Ok(receive)
}

fn end(out: &mut impl Write) -> Result<()> {
    is_open(out.flush())?;
    Err(Failure { code: 130, message: "interrupted".to_owned() })
}

/// Prints what comes next: false if nothing does yet; `None` when whoever reads the output has
/// gone.
fn print_next(follower: &mut Follower, as_json: bool, out: &mut impl Write) -> Result<Option<bool>> {
    let event = match follower.next()? {
        None => return Ok(Some(false)),
        Some(Followed::Record { lsn, kind, bytes, .. }) => {
            return Ok(is_open(print(out, as_json, lsn, kind, bytes))?.then_some(true));
        }
        Some(Followed::Missing(lsns)) => {
            let (first, last) = (lsns.start, lsns.end.saturating_sub(1));
            format!("records {first} to {last} are not in the log any more: they were given up, or lost to damage")
        }
        Some(Followed::Cut(lsn)) => {
            format!("the log was cut off after record {lsn}; those that follow have the same numbers as some before")
        }
        Some(_) => return Ok(Some(true)),
    };
    // In order with the records, where both go to a terminal.
    if !is_open(out.flush())? {
        return Ok(None);
    }
    complain(event);
    Ok(Some(true))
}
