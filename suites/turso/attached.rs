//! Replaces `PlatformIO` in turso's tests.

#[path = "../record_test.rs"]
mod record_test;

use std::sync::Arc;
use std::thread;

use self::record_test::record_test;
use super::nowait_io::NowaitIo;
use super::{Clock, Completion, File, IO, OpenFlags};
use crate::{MonotonicInstant, Result, WallClockInstant};

/// Names of tests that expect blocking calls; filled in by suite.py.
const BLOCKING: &[&str] = &[];

pub struct Attached(NowaitIo);

impl Attached {
    pub fn new() -> Result<Self> {
        let thread = thread::current();
        let test = thread.name().and_then(|path| path.rsplit("::").next());
        let blocks = test.is_some_and(|test| BLOCKING.contains(&test));
        Ok(Attached(if blocks { NowaitIo::new().blocking() } else { NowaitIo::new() }))
    }
}

impl Clock for Attached {
    fn current_time_monotonic(&self) -> MonotonicInstant {
        self.0.current_time_monotonic()
    }

    fn current_time_wall_clock(&self) -> WallClockInstant {
        self.0.current_time_wall_clock()
    }
}

impl IO for Attached {
    fn open_file(&self, path: &str, flags: OpenFlags, direct: bool) -> Result<Arc<dyn File>> {
        record_test();
        self.0.open_file(path, flags, direct)
    }

    fn open_shared_wal_file(&self, path: &str) -> Result<Arc<dyn File>> {
        self.0.open_shared_wal_file(path)
    }

    fn remove_file(&self, path: &str) -> Result<()> {
        self.0.remove_file(path)
    }

    fn supports_shared_wal_coordination(&self) -> bool {
        self.0.supports_shared_wal_coordination()
    }

    fn step(&self) -> Result<()> {
        self.0.step()
    }

    fn cancel(&self, completions: &[Completion]) -> Result<()> {
        self.0.cancel(completions)
    }

    fn drain_completions(&self, completions: &[Completion]) -> Result<()> {
        self.0.drain_completions(completions)
    }

    fn wait_for_completion(&self, completion: Completion) -> Result<()> {
        self.0.wait_for_completion(completion)
    }
}

/// Fails if a database is not written and read through nowait.
#[test]
fn nowait_serves_a_database() {
    let before = nowait::Nowait::shared().stats().ended();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("database.db");
    let open = || {
        let io = Arc::new(crate::PlatformIO::new().unwrap());
        let dialect = Arc::new(crate::SqliteDialect);
        let database = crate::Database::open_file(io, path.to_str().unwrap(), dialect).unwrap();
        database.connect(crate::ConnectOpts::new()).unwrap()
    };
    open().execute("CREATE TABLE t (x)").unwrap();
    open().execute("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(open().prepare("SELECT x FROM t").unwrap().run_collect_rows().unwrap().len(), 1);
    let operations = nowait::Nowait::shared().stats().ended() - before;
    assert!(operations > 10, "only {operations} operations");
}
