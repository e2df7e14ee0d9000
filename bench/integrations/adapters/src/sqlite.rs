//! SQLite on its VFS "unix", and on the VFS over nowait's C interface.
//!
//! `unsafe` here: the function that registers the VFS.

use std::ffi::c_int;
use std::path::{Path, PathBuf};

use nowait_bench::{Error, ErrorKind, Result};
// The VFS calls its functions.
use nowait_c as _;
use nowait_measure::{Files, State, Work};
use rusqlite::{Connection, OpenFlags};

use crate::{Cases, OrFailed, make_anew, places, row};

const ADAPTER: &str = "sqlite";
/// Names of the VFS, by way.
const VFS: [&str; 2] = ["unix", "nowait"];
const ROWS: u64 = 400_000;
const ROW_BYTES: usize = 200;
const INSERTS: u64 = 400;

unsafe extern "C" {
    safe fn sqlite_vfs_register() -> c_int;
}

/// Journal modes that are measured, with `synchronous=FULL`, which is the default.
const MODES: [&str; 2] = ["delete", "wal"];

pub(crate) fn measure(cases: &mut Cases<'_>) -> Result<()> {
    // Initializes SQLite, too.
    Connection::open_in_memory().or_failed("use SQLite")?;
    if sqlite_vfs_register() != 0 {
        return Err(Error::new(ErrorKind::Other, "SQLite does not take the VFS"));
    }
    let seed = cases.run.seed();
    for mode in MODES {
        let names = ["selects hot", "selects cold", "scan hot", "scan cold"].map(|name| format!("{mode} {name}"));
        if !cases.any(ADAPTER, &names.each_ref().map(String::as_str)) {
            continue;
        }
        let dir = cases.dir(&format!("sqlite-{mode}"))?;
        let path = dir.join("database");
        fill(&path, mode).or_failed("fill a database of SQLite")?;
        for (state, selects) in [(State::Hot, 40_000), (State::Cold, 2000)] {
            let files = Files::below(&[&dir])?;
            let work = Selects { path: &path, files, state, selects, seed, connection: None };
            cases.measure(ADAPTER, &format!("{mode} selects {}", state.name()), work)?;
            let files = Files::below(&[&dir])?;
            let work = Scan { path: &path, files, state, connection: None };
            cases.measure(ADAPTER, &format!("{mode} scan {}", state.name()), work)?;
        }
        std::fs::remove_dir_all(&dir).map_err(|error| Error::io("remove", &dir, &error))?;
    }
    for mode in MODES {
        let work = Inserts { dir: cases.dir("sqlite-inserts")?, mode, connection: None };
        cases.measure(ADAPTER, &format!("{mode} inserts"), work)?;
    }
    Ok(())
}

fn open(path: &Path, way: usize) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags_and_vfs(path, flags, VFS[way])?;
    // Opens the files, too.
    connection.query_row("SELECT count(*) FROM sqlite_schema", (), |_| Ok(()))?;
    Ok(connection)
}

/// Makes an empty table, in a journal mode that the database keeps.
fn create(path: &Path, mode: &str, way: usize) -> rusqlite::Result<Connection> {
    let connection = open(path, way)?;
    connection.pragma_update(None, "journal_mode", mode)?;
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, value BLOB NOT NULL)", ())?;
    Ok(connection)
}

fn fill(path: &Path, mode: &str) -> rusqlite::Result<()> {
    let mut connection = create(path, mode, crate::STOCK)?;
    let transaction = connection.transaction()?;
    let mut insert = transaction.prepare("INSERT INTO rows VALUES (?, ?)")?;
    for number in 0..ROWS {
        insert.execute((number as i64, row(number, ROW_BYTES)))?;
    }
    drop(insert);
    transaction.commit()?;
    // Also moves the WAL into the database.
    connection.close().map_err(|(_, error)| error)
}

/// Selects of random rows, a transaction each.
struct Selects<'a> {
    path: &'a Path,
    files: Files,
    state: State,
    selects: u64,
    seed: u64,
    connection: Option<Connection>,
}

impl Work for Selects<'_> {
    /// Sum of a byte of each row.
    type Answer = u64;

    fn operations(&self) -> u64 {
        self.selects
    }

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        self.connection = prepare(self.connection.take(), self.path, &self.files, self.state, way)?;
        Ok(())
    }

    fn run(&mut self, way: usize, round: u64) -> Result<(u64, u64)> {
        let mut run = || -> rusqlite::Result<u64> {
            let connection = opened(&mut self.connection, self.path, way)?;
            let mut select = connection.prepare("SELECT value FROM rows WHERE id = ?")?;
            let mut sum = 0;
            for number in places(self.seed, round, ROWS, self.selects) {
                let last = |row: &rusqlite::Row<'_>| Ok(row.get_ref(0)?.as_blob()?[ROW_BYTES - 1]);
                sum += u64::from(select.query_row([number as i64], last)?);
            }
            Ok(sum)
        };
        Ok((run().or_failed("select")?, self.selects * ROW_BYTES as u64))
    }
}

/// A query that reads all rows.
struct Scan<'a> {
    path: &'a Path,
    files: Files,
    state: State,
    connection: Option<Connection>,
}

impl Work for Scan<'_> {
    type Answer = (u64, u64);

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        self.connection = prepare(self.connection.take(), self.path, &self.files, self.state, way)?;
        Ok(())
    }

    fn run(&mut self, way: usize, _: u64) -> Result<((u64, u64), u64)> {
        let mut run = || -> rusqlite::Result<(u64, u64)> {
            let connection = opened(&mut self.connection, self.path, way)?;
            let query = "SELECT count(*), sum(length(value)) FROM rows";
            connection.query_row(query, (), |row| Ok((row.get(0)?, row.get(1)?)))
        };
        Ok((run().or_failed("scan")?, ROWS * ROW_BYTES as u64))
    }
}

/// Makes the files cold or hot, and opens the database if they are hot.
fn prepare(
    old: Option<Connection>,
    path: &Path,
    files: &Files,
    state: State,
    way: usize,
) -> Result<Option<Connection>> {
    drop(old);
    files.make(state)?;
    match state {
        State::Cold => Ok(None),
        State::Hot => Ok(Some(open(path, way).or_failed("open a database of SQLite")?)),
    }
}

fn opened<'a>(connection: &'a mut Option<Connection>, path: &Path, way: usize) -> rusqlite::Result<&'a Connection> {
    match connection {
        Some(connection) => Ok(connection),
        none => Ok(none.insert(open(path, way)?)),
    }
}

/// Durable transactions of one insert each, in a new database.
struct Inserts {
    dir: PathBuf,
    mode: &'static str,
    connection: Option<Connection>,
}

impl Work for Inserts {
    type Answer = ();

    fn operations(&self) -> u64 {
        INSERTS
    }

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        self.connection = None;
        make_anew(&self.dir)?;
        let made = create(&self.dir.join("database"), self.mode, way).and_then(|connection| {
            connection.pragma_update(None, "synchronous", "FULL")?;
            Ok(connection)
        });
        self.connection = Some(made.or_failed("create a database of SQLite")?);
        Ok(())
    }

    fn run(&mut self, _: usize, _: u64) -> Result<((), u64)> {
        let run = || -> rusqlite::Result<()> {
            let connection = self.connection.as_ref().expect("prepared");
            let mut insert = connection.prepare("INSERT INTO rows VALUES (?, ?)")?;
            for number in 0..INSERTS {
                insert.execute((number as i64, row(number, ROW_BYTES)))?;
            }
            Ok(())
        };
        run().or_failed("insert")?;
        Ok(((), INSERTS * ROW_BYTES as u64))
    }
}
