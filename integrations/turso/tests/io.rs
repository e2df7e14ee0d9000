//! Properties that turso's own tests do not cover; `suites/run turso` runs those.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nowait::{Engine, Nowait};
use nowait_turso::NowaitIo;
use tempfile::TempDir;
use turso_core::{ConnectOpts, Connection, Database, IO, PlatformIO, SqliteDialect};

fn temporary() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("database.db");
    (dir, path)
}

fn open(io: Arc<dyn IO>, path: &Path) -> Arc<Connection> {
    let database = Database::open_file(io, path.to_str().unwrap(), Arc::new(SqliteDialect)).unwrap();
    database.connect(ConnectOpts::new()).unwrap()
}

fn numbers(connection: &Arc<Connection>, query: &str) -> Vec<i64> {
    let rows = connection.prepare(query).unwrap().run_collect_rows().unwrap();
    rows.iter().map(|row| row[0].as_int().unwrap()).collect()
}

/// Databases of either IO are opened by the other.
#[test]
fn a_database_is_read_after_a_new_open_on_each_engine() {
    for engine in [Engine::Auto, Engine::Pool] {
        let (_dir, path) = temporary();
        let nowait = Nowait::builder().engine(engine).build().unwrap();
        let on_nowait = || -> Arc<dyn IO> { Arc::new(NowaitIo::new_in(&nowait)) };
        let stock = || -> Arc<dyn IO> { Arc::new(PlatformIO::new().unwrap()) };
        open(on_nowait(), &path).execute("CREATE TABLE t (x INTEGER)").unwrap();
        for (round, io) in [on_nowait(), stock(), on_nowait(), stock()].into_iter().enumerate() {
            let connection = open(io, &path);
            assert_eq!(numbers(&connection, "SELECT x FROM t"), (0..round as i64).collect::<Vec<_>>());
            connection.execute(format!("INSERT INTO t VALUES ({round})")).unwrap();
        }
        assert!(nowait.stats().ended() > 10);
    }
}
