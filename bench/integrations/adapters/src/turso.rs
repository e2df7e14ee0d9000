//! turso on its `PlatformIO`, and on nowait's `NowaitIo`.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nowait_bench::Result;
use nowait_measure::{Files, State, Work};
use nowait_turso::NowaitIo;
use turso_core::{ConnectOpts, Connection, Database, IO, PlatformIO, SqliteDialect, Statement, Value};

use crate::{Cases, OrFailed, STOCK, make_anew, places, row};

const ADAPTER: &str = "turso";
const ROWS: u64 = 200_000;
const ROW_BYTES: usize = 200;
/// Holds the upper pages of the tree, so that each select reads its row from the file.
const CACHE_PAGES: usize = 1000;
const COMMITS: u64 = 400;

pub(crate) fn measure(cases: &mut Cases<'_>) -> Result<()> {
    let dir = cases.dir("turso")?;
    let path = dir.join("database");
    if cases.any(ADAPTER, &["selects hot", "selects cold"]) {
        fill(&path).or_failed("fill a database of turso")?;
        let seed = cases.run.seed();
        for (state, selects) in [(State::Hot, 40_000), (State::Cold, 2000)] {
            let files = Files::below(&[&dir])?;
            let work = Selects { path: &path, files, state, selects, seed, connection: None };
            cases.measure(ADAPTER, &format!("selects {}", state.name()), work)?;
        }
    }
    cases.measure(ADAPTER, "commits", Commits { dir: cases.dir("turso-commits")?, connection: None })
}

fn open(path: &Path, way: usize) -> turso_core::Result<Arc<Connection>> {
    let io: Arc<dyn IO> = match way {
        STOCK => Arc::new(PlatformIO::new()?),
        _ => Arc::new(NowaitIo::new()),
    };
    let path = path.to_str().expect("names in UTF-8");
    let connection = Database::open_file(io, path, Arc::new(SqliteDialect))?.connect(ConnectOpts::new())?;
    connection.execute(format!("PRAGMA cache_size = {CACHE_PAGES}"))?;
    Ok(connection)
}

fn create(path: &Path, way: usize) -> turso_core::Result<Arc<Connection>> {
    let connection = open(path, way)?;
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")?;
    Ok(connection)
}

fn fill(path: &Path) -> turso_core::Result<()> {
    let connection = create(path, STOCK)?;
    connection.execute("BEGIN")?;
    insert(&connection, ROWS)?;
    connection.execute("COMMIT")?;
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
}

fn insert(connection: &Arc<Connection>, rows: u64) -> turso_core::Result<()> {
    let mut insert = connection.prepare("INSERT INTO rows VALUES (?, ?)")?;
    for number in 0..rows {
        bind(&mut insert, 1, Value::from_i64(number as i64))?;
        bind(&mut insert, 2, Value::from_slice(&row(number, ROW_BYTES))?)?;
        insert.run_ignore_rows()?;
        insert.reset()?;
    }
    Ok(())
}

fn bind(statement: &mut Statement, parameter: usize, value: Value) -> turso_core::Result<()> {
    statement.bind_at(NonZero::new(parameter).expect("counted from one"), value)
}

/// Selects of random rows, a transaction each.
struct Selects<'a> {
    path: &'a Path,
    files: Files,
    state: State,
    selects: u64,
    seed: u64,
    connection: Option<Arc<Connection>>,
}

impl Work for Selects<'_> {
    /// Sum of a byte of each row.
    type Answer = u64;

    fn operations(&self) -> u64 {
        self.selects
    }

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        self.connection = None;
        self.files.make(self.state)?;
        if self.state == State::Hot {
            self.connection = Some(open(self.path, way).or_failed("open a database of turso")?);
        }
        Ok(())
    }

    fn run(&mut self, way: usize, round: u64) -> Result<(u64, u64)> {
        let mut run = || -> turso_core::Result<u64> {
            let connection = match self.connection.take() {
                Some(connection) => connection,
                None => open(self.path, way)?,
            };
            let mut select = connection.prepare("SELECT value FROM rows WHERE id = ?")?;
            let mut sum = 0;
            for number in places(self.seed, round, ROWS, self.selects) {
                bind(&mut select, 1, Value::from_i64(number as i64))?;
                select.run_with_row_callback(|row| {
                    sum += u64::from(row.get_value(0).as_blob()[ROW_BYTES - 1]);
                    Ok(())
                })?;
                select.reset()?;
            }
            Ok(sum)
        };
        Ok((run().or_failed("select")?, self.selects * ROW_BYTES as u64))
    }
}

/// Durable commits of one insert each, in a new database.
struct Commits {
    dir: PathBuf,
    connection: Option<Arc<Connection>>,
}

impl Work for Commits {
    type Answer = ();

    fn operations(&self) -> u64 {
        COMMITS
    }

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        self.connection = None;
        make_anew(&self.dir)?;
        let made = create(&self.dir.join("database"), way);
        self.connection = Some(made.or_failed("create a database of turso")?);
        Ok(())
    }

    fn run(&mut self, _: usize, _: u64) -> Result<((), u64)> {
        insert(self.connection.as_ref().expect("prepared"), COMMITS).or_failed("insert")?;
        Ok(((), COMMITS * ROW_BYTES as u64))
    }
}
