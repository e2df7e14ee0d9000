//! Sessions of DataFusion, each of which reads `file:///` through another store, and a query's turn.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use nowait_bench::{Error, ErrorKind, Result};
use nowait_cache::PageCache;
use nowait_measure::{Files, State, Work};
use nowait_object_store::Options;
use nowait_object_store::v0_13::NowaitFileSystem;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::ahead::ReadAhead;
use crate::data::Scale;
use crate::queries::{Query, Set};

/// A session's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) store: Store,
    /// Scans read a row group ahead.
    pub(crate) ahead: bool,
}

/// Where `file:///` leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// DataFusion's own: `LocalFileSystem`.
    Stock,
    Nowait,
    /// Past the page cache.
    NowaitDirect,
    /// Direct reads through a page cache of the process.
    NowaitCache,
}

impl Way {
    pub(crate) fn of(store: Store) -> Way {
        Way { store, ahead: false }
    }

    pub(crate) fn name(self) -> &'static str {
        match (self.store, self.ahead) {
            (Store::Stock, false) => "stock",
            (Store::Stock, true) => "stock-ahead",
            (Store::Nowait, false) => "nowait",
            (Store::Nowait, true) => "nowait-ahead",
            (Store::NowaitDirect, false) => "nowait-direct",
            (Store::NowaitDirect, true) => "nowait-direct-ahead",
            (Store::NowaitCache, false) => "nowait-cache",
            (Store::NowaitCache, true) => "nowait-cache-ahead",
        }
    }

    /// A runtime environment with nothing cached, except what the cache of the process contains.
    fn environment(self, cache: Option<&PageCache>) -> std::result::Result<Arc<RuntimeEnv>, DataFusionError> {
        let environment = RuntimeEnvBuilder::new().build_arc()?;
        if self.store != Store::Stock {
            let mut options = Options::new().direct(self.store == Store::NowaitDirect);
            if let Some(cache) = cache.filter(|_| self.store == Store::NowaitCache) {
                options = options.cache(cache);
            }
            NowaitFileSystem::register(options, |url, store| {
                environment.register_object_store(url, store);
            });
        }
        Ok(environment)
    }

    fn session(
        self,
        readers: &Handle,
        cache: Option<&PageCache>,
    ) -> std::result::Result<SessionContext, DataFusionError> {
        let state = SessionStateBuilder::new()
            .with_config(SessionConfig::new())
            .with_runtime_env(self.environment(cache)?)
            .with_default_features();
        let state =
            if self.ahead { state.with_physical_optimizer_rule(Arc::new(ReadAhead(readers.clone()))) } else { state };
        Ok(SessionContext::new_with_state(state.build()))
    }
}

/// A runtime of tokio, and the ways that take turns on it.
pub(crate) struct Engines {
    runtime: Runtime,
    /// For what is read ahead.
    readers: Runtime,
    ways: Vec<Way>,
    /// Cache that all sessions of [`Store::NowaitCache`] share.
    cache: Option<PageCache>,
}

impl Engines {
    /// With a worker for each processor, as DataFusion's own programs have.
    pub(crate) fn new(ways: &[Way], cache: Option<PageCache>) -> Result<Engines> {
        let started = |mut builder: Builder| {
            let runtime = builder.enable_all().build();
            runtime.map_err(|error| Error::new(ErrorKind::Other, format!("cannot start a runtime of tokio: {error}")))
        };
        let runtime = started(Builder::new_multi_thread())?;
        let mut one = Builder::new_multi_thread();
        one.worker_threads(1);
        let readers = started(one)?;
        Ok(Engines { runtime, readers, ways: ways.to_vec(), cache })
    }

    /// A session that knows the tables of a set: it has listed their files and read their footers.
    fn session(&self, way: usize, set: Set, folder: &Path) -> Result<SessionContext> {
        let known = self.runtime.block_on(async {
            let session = self.ways[way].session(self.readers.handle(), self.cache.as_ref())?;
            for table in set.tables() {
                let url = format!("file://{}/{}/{table}/", folder.display(), set.name());
                session.register_parquet(*table, url, ParquetReadOptions::default()).await?;
            }
            Ok(session)
        });
        known.map_err(failed)
    }

    /// The answer, as lines in order.
    fn answer(&self, session: &SessionContext, sql: String) -> Result<Vec<String>> {
        let session = session.clone();
        let query = self.runtime.spawn(async move {
            let batches = session.sql(&sql).await?.collect().await?;
            Ok(pretty_format_batches(&batches)?.to_string())
        });
        let text = self.runtime.block_on(query).map_err(|error| Error::new(ErrorKind::Other, error.to_string()))?;
        let mut lines: Vec<String> = text.map_err(failed)?.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        Ok(lines)
    }
}

fn failed(error: DataFusionError) -> Error {
    Error::new(ErrorKind::Other, error.strip_backtrace())
}

/// A query in one state of its files.
pub(crate) struct Session<'a> {
    pub(crate) engines: &'a Engines,
    pub(crate) folder: &'a Path,
    pub(crate) files: &'a Files,
    pub(crate) query: &'a Query,
    pub(crate) state: State,
    pub(crate) scale: Scale,
    pub(crate) seed: u64,
    /// Of each way, for hot rounds.
    pub(crate) sessions: Vec<Option<SessionContext>>,
}

impl Session<'_> {
    fn begin(&self, way: usize) -> Result<SessionContext> {
        self.engines.session(way, self.query.set, self.folder)
    }
}

impl Work for Session<'_> {
    type Answer = Vec<String>;

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        if self.state == State::Hot && self.sessions[way].is_none() {
            self.sessions[way] = Some(self.begin(way)?);
        }
        self.files.make(self.state)
    }

    fn run(&mut self, way: usize, round: u64) -> Result<(Vec<String>, u64)> {
        let sql = self.query.sql(self.scale, self.seed, round);
        let session = match &self.sessions[way] {
            Some(session) => session.clone(),
            None => self.begin(way)?,
        };
        Ok((self.engines.answer(&session, sql)?, 0))
    }
}
