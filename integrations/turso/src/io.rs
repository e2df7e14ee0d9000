//! The files of databases.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use nowait::{Nowait, OpenOptions};
use turso_core::{Clock, File, IO, LimboError, MonotonicInstant, OpenFlags, UnixIO, WallClockInstant, io_error};

use super::file::NowaitFile;
use super::in_flight::InFlight;

/// Suffix of the file of memory that processes share, on whose bytes they take locks. Only turso defines
/// its format.
const SHARED_WAL: &str = "tshm";

/// I/O of databases through an instance of [`nowait`].
pub struct NowaitIo {
    nowait: Nowait,
    in_flight: Arc<InFlight>,
    blocks: bool,
}

impl NowaitIo {
    /// Uses the instance that the process shares.
    pub fn new() -> NowaitIo {
        NowaitIo::new_in(Nowait::shared())
    }

    /// Uses the given instance, which must not be of a simulated disk.
    pub fn new_in(nowait: &Nowait) -> NowaitIo {
        NowaitIo { nowait: nowait.clone(), in_flight: Arc::default(), blocks: false }
    }

    /// Makes each call block until its operation has ended, as those of `PlatformIO` do. For threads that
    /// have nothing else to run: no other thread is woken.
    #[must_use]
    pub fn blocking(mut self) -> NowaitIo {
        self.blocks = true;
        self
    }

    fn open(&self, path: &Path, flags: OpenFlags) -> nowait::Result<NowaitFile> {
        let writes = !flags.contains(OpenFlags::ReadOnly);
        let creates = writes && flags.contains(OpenFlags::Create);
        let mut options = OpenOptions::new();
        options.read(true).write(writes).create(creates);
        let file = options.open_in(&self.nowait, path).wait()?;
        let mut dir = None;
        if creates {
            // The path may be a symbolic link to a file in another directory.
            let target = self.nowait.fs().canonicalize(path).wait()?;
            dir = target.parent().map(Path::to_owned);
        }
        Ok(NowaitFile::new(&self.nowait, file, dir, self.in_flight.clone(), self.blocks))
    }
}

impl Default for NowaitIo {
    fn default() -> NowaitIo {
        NowaitIo::new()
    }
}

impl Drop for NowaitIo {
    fn drop(&mut self) {
        self.in_flight.drop_called();
    }
}

impl fmt::Debug for NowaitIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NowaitIo").field("nowait", &self.nowait).finish_non_exhaustive()
    }
}

impl Clock for NowaitIo {
    fn current_time_monotonic(&self) -> MonotonicInstant {
        MonotonicInstant::now()
    }

    fn current_time_wall_clock(&self) -> WallClockInstant {
        WallClockInstant::now()
    }
}

impl IO for NowaitIo {
    fn open_file(&self, path: &str, flags: OpenFlags, direct: bool) -> Result<Arc<dyn File>, LimboError> {
        if path.ends_with(SHARED_WAL) {
            return UnixIO::new()?.open_file(path, flags, direct);
        }
        let file = self.open(path.as_ref(), flags).map_err(|error| io_error(error.into(), "open"))?;
        // turso reads this variable, too.
        if std::env::var("LIMBO_DISABLE_FILE_LOCK").is_err()
            && !flags.intersects(OpenFlags::ReadOnly | OpenFlags::NoLock)
        {
            file.lock_file(true)?;
        }
        Ok(Arc::new(file))
    }

    fn open_shared_wal_file(&self, path: &str) -> Result<Arc<dyn File>, LimboError> {
        UnixIO::new()?.open_shared_wal_file(path)
    }

    fn supports_shared_wal_coordination(&self) -> bool {
        true
    }

    fn remove_file(&self, path: &str) -> Result<(), LimboError> {
        let removed = self.nowait.fs().remove_file(path).wait();
        removed.map_err(|error| io_error(io::Error::from(error), "remove_file"))
    }

    fn step(&self) -> Result<(), LimboError> {
        self.in_flight.step();
        Ok(())
    }
}
