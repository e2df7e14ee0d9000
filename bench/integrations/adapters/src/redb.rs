//! redb on its `FileBackend`, and on nowait's.

use std::path::{Path, PathBuf};

use nowait_bench::Result;
use nowait_measure::{Files, State, Work};
use nowait_redb::NowaitBackend;
use redb::{Builder, Database, ReadOnlyDatabase, ReadableDatabase, TableDefinition};

use crate::{Cases, OrFailed, STOCK, make_anew, places, row};

const ADAPTER: &str = "redb";
const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("rows");
const ROWS: u64 = 500_000;
const ROW_BYTES: usize = 200;
/// Holds the upper pages of the tree, so that each get reads its row from the back end.
const CACHE_BYTES: usize = 4 << 20;
const COMMITS: u64 = 400;

pub(crate) fn measure(cases: &mut Cases<'_>) -> Result<()> {
    let dir = cases.dir("redb")?;
    let path = dir.join("database");
    if cases.any(ADAPTER, &["gets hot", "gets cold"]) {
        fill(&path)?;
        let seed = cases.run.seed();
        for (state, gets) in [(State::Hot, 50_000), (State::Cold, 2000)] {
            let files = Files::below(&[&dir])?;
            let work = Gets { path: &path, files, state, gets, seed, database: None };
            cases.measure(ADAPTER, &format!("gets {}", state.name()), work)?;
        }
    }
    cases.measure(ADAPTER, "commits", Commits { dir: cases.dir("redb-commits")?, database: None })
}

fn fill(path: &Path) -> Result<()> {
    let fill = || -> std::result::Result<(), redb::Error> {
        let database = Database::create(path)?;
        let write = database.begin_write()?;
        let mut table = write.open_table(TABLE)?;
        for number in 0..ROWS {
            table.insert(number, &*row(number, ROW_BYTES))?;
        }
        drop(table);
        Ok(write.commit()?)
    };
    fill().or_failed("fill a database of redb")
}

/// Gets of random rows, all in one transaction.
struct Gets<'a> {
    path: &'a Path,
    files: Files,
    state: State,
    gets: u64,
    seed: u64,
    database: Option<ReadOnlyDatabase>,
}

impl Gets<'_> {
    fn open(&self, way: usize) -> std::result::Result<ReadOnlyDatabase, redb::Error> {
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE_BYTES);
        Ok(match way {
            STOCK => builder.open_read_only(self.path)?,
            _ => builder.open_read_only_with_backend(NowaitBackend::open_read_only(self.path)?)?,
        })
    }
}

impl Work for Gets<'_> {
    /// Sum of a byte of each row.
    type Answer = u64;

    fn operations(&self) -> u64 {
        self.gets
    }

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        self.database = None;
        self.files.make(self.state)?;
        if self.state == State::Hot {
            self.database = Some(self.open(way).or_failed("open a database of redb")?);
        }
        Ok(())
    }

    fn run(&mut self, way: usize, round: u64) -> Result<(u64, u64)> {
        let mut run = || -> std::result::Result<u64, redb::Error> {
            let database = match self.database.take() {
                Some(database) => database,
                None => self.open(way)?,
            };
            let table = database.begin_read()?.open_table(TABLE)?;
            let mut sum = 0;
            for number in places(self.seed, round, ROWS, self.gets) {
                sum += table.get(number)?.map_or(0, |row| u64::from(row.value()[ROW_BYTES - 1]));
            }
            Ok(sum)
        };
        Ok((run().or_failed("get rows")?, self.gets * ROW_BYTES as u64))
    }
}

/// Durable commits of one insert each, in a new database.
struct Commits {
    dir: PathBuf,
    database: Option<Database>,
}

impl Work for Commits {
    type Answer = ();

    fn operations(&self) -> u64 {
        COMMITS
    }

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        self.database = None;
        make_anew(&self.dir)?;
        let path = self.dir.join("database");
        let create = || -> std::result::Result<Database, redb::Error> {
            Ok(match way {
                STOCK => Database::create(path)?,
                _ => Database::builder().create_with_backend(NowaitBackend::create(path)?)?,
            })
        };
        self.database = Some(create().or_failed("create a database of redb")?);
        Ok(())
    }

    fn run(&mut self, _: usize, _: u64) -> Result<((), u64)> {
        let commit = |number| -> std::result::Result<(), redb::Error> {
            let database = self.database.as_ref().expect("prepared");
            let write = database.begin_write()?;
            write.open_table(TABLE)?.insert(number, &*row(number, ROW_BYTES))?;
            Ok(write.commit()?)
        };
        (0..COMMITS).try_for_each(commit).or_failed("commit")?;
        Ok(((), COMMITS * ROW_BYTES as u64))
    }
}
