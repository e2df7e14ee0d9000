//! All of a log, read from storage: `nowait` opens it, and so finds its end and checks every block;
//! `nowait-inspect` does so without opening it for appending, `nowait-tail` opens it by its end
//! alone (`Scan::Tail`). `cat` and `pread` read the same segments and look at nothing, through the
//! page cache and past it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::time::Instant;

use nowait_log::{Log, Options, Recovery, Scan, inspect};

use crate::measure::meter::Round;
use crate::measure::work::{Buffer, Opening};
use crate::ways::{OURS, OpenWay, Way};

pub(crate) struct Cat;
pub(crate) struct Direct;
pub(crate) struct Open {
    name: &'static str,
    scan: Scan,
}
pub(crate) struct Inspect;

pub(crate) const WHOLE: Open = Open { name: OURS, scan: Scan::All };
pub(crate) const TAIL: Open = Open { name: "nowait-tail", scan: Scan::Tail };

/// Bytes of one direct read.
const PIECE: usize = 1 << 20;

impl Way for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }
}

impl OpenWay for Cat {
    fn open(&self, job: &Opening<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let mut cat = Command::new("cat");
        cat.arg("--").args(job.segments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        round.start();
        let started = Instant::now();
        let status = cat.status()?;
        round.tally.committed(job.bytes as usize, started, Instant::now());
        round.stop();
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("cat ended with {status}"))) }
    }
}

impl Way for Direct {
    fn name(&self) -> &'static str {
        "pread"
    }
}

impl OpenWay for Direct {
    fn direct(&self) -> bool {
        true
    }

    fn open(&self, job: &Opening<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let open = |path| OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let files: Vec<File> = job.segments.iter().map(open).collect::<io::Result<_>>()?;
        let mut piece = Buffer::new(PIECE);
        let mut bytes = 0;
        round.start();
        let started = Instant::now();
        for file in &files {
            let mut offset = 0;
            loop {
                match file.read_at(piece.bytes(), offset)? {
                    0 => break,
                    count => offset += count as u64,
                }
            }
            bytes += offset;
        }
        round.tally.committed(bytes as usize, started, Instant::now());
        round.stop();
        Ok(())
    }
}

/// Fails unless everything was found.
fn complete(job: &Opening<'_>, recovery: &Recovery) -> io::Result<()> {
    let (last, expected) = (recovery.last_lsn, job.last_lsn);
    let is_whole = last == expected && recovery.damage.is_empty();
    if is_whole { Ok(()) } else { Err(io::Error::other(format!("the last record is {last} instead of {expected}"))) }
}

impl Way for Open {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl OpenWay for Open {
    fn open(&self, job: &Opening<'_>, round: &mut Round<'_>) -> io::Result<()> {
        round.start();
        let started = Instant::now();
        let (log, recovery) = Log::open(job.folder, &Options::new().scan(self.scan)).wait()?;
        round.tally.committed(job.bytes as usize, started, Instant::now());
        round.stop();
        log.close().wait()?;
        complete(job, &recovery)
    }
}

impl Way for Inspect {
    fn name(&self) -> &'static str {
        "nowait-inspect"
    }
}

impl OpenWay for Inspect {
    fn open(&self, job: &Opening<'_>, round: &mut Round<'_>) -> io::Result<()> {
        round.start();
        let started = Instant::now();
        let recovery = inspect(job.folder).wait()?;
        round.tally.committed(job.bytes as usize, started, Instant::now());
        round.stop();
        complete(job, &recovery)
    }
}
