//! `nowait log tail`: the last records of a log, and those that come.

use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use nowait::ErrorKind;
use nowait_log::{FollowFrom, Followed, Follower, follow, inspect_end};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Result, is_open, print};
use crate::cli::{self, Failure};
use crate::interrupt;
use crate::show::complain;

/// Time until the end is looked at again: it doubles while nothing comes.
const DELAY_MIN: Duration = Duration::from_millis(1);
const DELAY_MAX: Duration = Duration::from_millis(100);
/// Checks of the end without a new record between two checks of the log's path.
const LOOKS: u32 = 10;

pub(super) fn tail(options: &cli::Tail) -> Result<()> {
    let interrupted = if options.follow { Some(interrupt::interrupted().map_err(unheard)?) } else { None };
    let mut follower = super::of_log(&options.dir, follow(&options.dir, begin(options)).wait())?;
    follower.skip_damage(options.skip_damage);
    let mut tail = Printer { options, follower, stage: Stage::Begun, is_damaged: false };
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut delay, mut looks) = (DELAY_MIN, 0);
    loop {
        let Some(is_record) = tail.print_next(&mut out)? else { return Ok(()) };
        if is_record {
            delay = DELAY_MIN;
            if interrupted.as_ref().is_some_and(|interrupted| interrupted.load(Relaxed)) {
                return tail.end(&mut out);
            }
            continue;
        }
        if !is_open(out.flush())? || !is_read(out.get_ref()) {
            return Ok(());
        }
        match tail.stage {
            Stage::Begun => {
                // Records that are whole now count, even if no watermark covers them yet.
                tail.follower.settle()?;
                tail.stage = Stage::Settled;
                continue;
            }
            Stage::Settled => {
                tail.look_at_end()?;
                tail.stage = Stage::Coming;
                continue;
            }
            Stage::Coming => {}
        }
        let Some(interrupted) = &interrupted else { return tail.damaged() };
        if looks == 0 && !tail.follower.is_in_place()? {
            let dir = options.dir.display();
            let message =
                format!("{dir} was removed, renamed or replaced by another log; start again to follow that one");
            return Err(Failure { code: 5, message });
        }
        looks = (looks + 1) % LOOKS;
        thread::sleep(delay);
        if interrupted.load(Relaxed) {
            return tail.end(&mut out);
        }
        delay = (delay * 2).min(DELAY_MAX);
    }
}

/// Returns the first record to print. [`FollowFrom::Last`] counts from the first block that is not
/// intact, which may contain more intact records, and knows of no damage in older segments.
fn begin(options: &cli::Tail) -> FollowFrom {
    let last = FollowFrom::Last(options.count);
    // If this fails, the follower reports why.
    let Ok(log) = inspect_end(&options.dir).wait() else { return last };
    let before = |lsn: u64| lsn.saturating_sub(options.count).max(log.first_lsn).max(1);
    if options.skip_damage {
        return if log.damage.is_empty() { last } else { FollowFrom::Lsn(before(log.next_lsn)) };
    }
    let mut from = last;
    // Each turn begins earlier than the one before.
    while let Some((first, lost)) = damage_after(options, from, log.next_lsn) {
        let begin = before(lost);
        from = FollowFrom::Lsn(begin);
        if begin >= first {
            break;
        }
    }
    from
}

/// Reads from a record to the end of the log. Returns the first number read, and the first one that
/// is lost to damage; `None` if there is no damage, or another failure.
fn damage_after(options: &cli::Tail, from: FollowFrom, end: u64) -> Option<(u64, u64)> {
    let mut follower = follow(&options.dir, from).wait().ok()?;
    let first = follower.next_lsn();
    let mut is_settled = false;
    loop {
        match follower.next() {
            Ok(Some(Followed::Record { lsn, .. })) if lsn + 1 >= end => return None,
            Ok(Some(_)) => {}
            Ok(None) if is_settled => return None,
            Ok(None) => {
                is_settled = true;
                follower.settle().ok()?;
            }
            Err(error) if error.kind() == ErrorKind::Damaged => return Some((first, follower.damage()?.lsns.start)),
            Err(_) => return None,
        }
    }
}

/// State of a log that is printed.
struct Printer<'o> {
    options: &'o cli::Tail,
    follower: Follower,
    stage: Stage,
    is_damaged: bool,
}

/// Progress of the printing.
enum Stage {
    /// Records that a watermark covers are not all printed.
    Begun,
    /// Records of the log at the start are not all printed.
    Settled,
    /// All records are printed, and the end of the log was checked.
    Coming,
}

impl Printer<'_> {
    /// Checks whether the log has lost its end.
    fn look_at_end(&mut self) -> Result<()> {
        let recovery = match inspect_end(&self.options.dir).wait() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.check_place()?;
                return Err(error.into());
            }
            recovery => recovery?,
        };
        if !self.is_damaged {
            for damage in &recovery.damage {
                self.is_damaged = true;
                complain(damage);
            }
        }
        if self.options.skip_damage { Ok(()) } else { self.damaged() }
    }

    /// Fails with exit code 5 if the log is not at its path any more.
    fn check_place(&self) -> Result<()> {
        if self.follower.is_in_place()? {
            return Ok(());
        }
        let dir = self.options.dir.display();
        let message = format!("{dir} was removed, renamed or replaced by another log; start again to follow that one");
        Err(Failure { code: 5, message })
    }

    /// Fails with exit code 7 if damage was found.
    fn damaged(&self) -> Result<()> {
        if self.is_damaged { Err(super::damaged_log()) } else { Ok(()) }
    }

    /// Ends the command after a signal.
    fn end(&self, out: &mut impl Write) -> Result<()> {
        is_open(out.flush())?;
        self.damaged()?;
        Err(Failure { code: 130, message: "interrupted".to_owned() })
    }

    /// Prints the next record or message. Returns false if there is none yet, and `None` if the
    /// reader of the output has closed it.
    fn print_next(&mut self, out: &mut impl Write) -> Result<Option<bool>> {
        let event = match self.follower.next() {
            Ok(None) => return Ok(Some(false)),
            Ok(Some(Followed::Record { lsn, kind, bytes, .. })) => {
                return Ok(is_open(print(out, self.options.json, lsn, kind, bytes))?.then_some(true));
            }
            Ok(Some(Followed::Missing(lsns))) => {
                let (first, last) = (lsns.start, lsns.end.saturating_sub(1));
                format!("records {first} to {last} are no longer in the log: they were dropped, or lost to damage")
            }
            Ok(Some(Followed::Cut(lsn))) => {
                format!("the log was cut off after record {lsn}; the records that follow reuse the numbers after it")
            }
            Ok(Some(_)) => return Ok(Some(true)),
            Err(error) if error.kind() == ErrorKind::Damaged => {
                self.is_damaged = true;
                error.to_string()
            }
            Err(error) => return Err(error.into()),
        };
        // Flushed first, so that records and messages are in order on a terminal.
        if !is_open(out.flush())? {
            return Ok(None);
        }
        complain(event);
        if !self.options.skip_damage {
            self.damaged()?;
        }
        Ok(Some(true))
    }
}

/// Returns false if the reader of the output is gone: an idle log prints nothing that would fail.
fn is_read(out: &impl AsFd) -> bool {
    let mut output = [PollFd::new(out, PollFlags::empty())];
    // If this is unknown, the next record shows it.
    poll(&mut output, Some(&Timespec::default())).is_err() || !output[0].revents().contains(PollFlags::ERR)
}

fn unheard(error: io::Error) -> Failure {
    Failure { code: 1, message: format!("cannot handle Ctrl-C: {error}") }
}
