//! A cluster on loopback: its processes, its answers, and what it does when an executor is killed.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use ballista::prelude::{SessionConfigExt, SessionContextExt};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use nowait_bench::{Error, ErrorKind, Result};
use nowait_measure::{Files, State, Work};
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use crate::tables::{self, Query};
use crate::{failed, node};

const LOOPBACK: &str = "127.0.0.1";

/// Processes, which end when this is dropped, or this process ends.
pub(crate) struct Cluster {
    scheduler_port: u16,
    scheduler: Child,
    executors: Vec<(Child, PathBuf)>,
    /// The longest that a query may take.
    patience: Duration,
}

impl Cluster {
    /// Starts a scheduler and executors, and returns when they have answered a query.
    pub(crate) async fn start(folder: &Path, executors: usize, patience: Duration) -> Result<Cluster> {
        let ports = free_ports(1 + 2 * executors)?;
        let port = |number: usize| ports[number].to_string();
        let scheduler = start(&["scheduler", "--port", &port(0)])?;
        let mut cluster = Cluster { scheduler_port: ports[0], scheduler, executors: Vec::new(), patience };
        for number in 0..executors {
            let work_dir = folder.join(format!("work-{number}"));
            std::fs::create_dir(&work_dir).map_err(|error| Error::io("make the directory", &work_dir, &error))?;
            let (rows, tasks) = (port(1 + 2 * number), port(2 + 2 * number));
            let child = start(&[
                "executor",
                "--scheduler-port",
                &port(0),
                "--port",
                &rows,
                "--task-port",
                &tasks,
                "--work-dir",
                &work_dir.display().to_string(),
            ])?;
            cluster.executors.push((child, work_dir));
        }
        cluster.listens().await?;
        Ok(cluster)
    }

    /// Waits until all processes take calls.
    async fn listens(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(30);
        let query = Query { name: "first", sql: "SELECT 1" };
        loop {
            let answer = self.answer(&query, None).await;
            if answer.is_ok() {
                return Ok(());
            }
            let all = self.executors.iter_mut().map(|(child, _)| child).chain([&mut self.scheduler]);
            for child in all {
                if let Ok(Some(status)) = child.try_wait() {
                    let text = format!("a process of the cluster ended as it began: {status}");
                    return Err(Error::new(ErrorKind::Other, text));
                }
            }
            if Instant::now() > end {
                return answer.map(drop);
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// The cluster's answer, in a session that knows nothing before. `tables`: where they are, and by
    /// which scheme.
    pub(crate) async fn answer(&self, query: &Query, tables: Option<(&Path, &str)>) -> Result<Vec<String>> {
        let answer = async {
            let session = self.session().await?;
            if let Some((folder, scheme)) = tables {
                tables::register(&session, folder, scheme).await?;
            }
            tables::lines(session.sql(query.sql).await?.collect().await?)
        };
        let what = format!("answer {} on the cluster", query.name);
        match timeout(self.patience, answer).await {
            Ok(answer) => answer.map_err(|error| failed(&what, &error)),
            Err(_) => Err(failed(&what, &format!("it took more than {} s (--timeout)", self.patience.as_secs()))),
        }
    }

    async fn session(&self) -> std::result::Result<SessionContext, DataFusionError> {
        let config = SessionConfig::new_with_ballista();
        let state = SessionStateBuilder::new().with_config(config).with_default_features().build();
        let url = format!("df://{LOOPBACK}:{}", self.scheduler_port);
        let session = SessionContext::remote_with_state(&url, state).await?;
        node::register(&session.runtime_env());
        Ok(session)
    }

    /// Kills an executor in the middle of a query, and holds the answer to what is expected.
    pub(crate) async fn survive(
        &mut self,
        folder: &Path,
        files: &Files,
        query: &Query,
        expected: &[String],
    ) -> Result<String> {
        files.make(State::Cold)?;
        let begun = Instant::now();
        self.answer(query, Some((folder, "nowait"))).await?;
        let usual = begun.elapsed();
        files.make(State::Cold)?;
        let (mut victim, work_dir) = self.executors.remove(0);
        let before = bytes_below(&work_dir);
        let begun = Instant::now();
        let kill = async {
            // Rows that it has shuffled are lost with it; some of its tasks are under way.
            while bytes_below(&work_dir) <= before && begun.elapsed() < usual {
                sleep(Duration::from_millis(5)).await;
            }
            let shuffled = bytes_below(&work_dir).saturating_sub(before);
            let killed = victim.kill().await.map(|()| (begun.elapsed(), shuffled));
            // As on a machine that is lost: what it had is not there for others on this one.
            killed.and_then(|killed| std::fs::remove_dir_all(&work_dir).map(|()| killed))
        };
        let (answer, killed) = tokio::join!(self.answer(query, Some((folder, "nowait"))), kill);
        let took = begun.elapsed();
        let (killed, shuffled) = killed.map_err(|error| failed("kill an executor", &error))?;
        let answer = answer?;
        if answer != expected {
            return Err(failed("survive the kill", &"the answer is another than that of one process"));
        }
        if killed >= took {
            return Err(failed("kill an executor in time", &"the query had ended; use more --files"));
        }
        Ok(format!(
            "killed an executor {:.2} s into {}, with {shuffled} bytes of shuffled rows: the answer is right, after \
             {:.2} s instead of {:.2} s",
            killed.as_secs_f64(),
            query.name,
            took.as_secs_f64(),
            usual.as_secs_f64()
        ))
    }

    /// Ends all processes, and waits for them.
    pub(crate) async fn end(mut self) -> Result<()> {
        let all = self.executors.iter_mut().map(|(child, _)| child).chain([&mut self.scheduler]);
        for child in all {
            child.kill().await.map_err(|error| failed("end a process of the cluster", &error))?;
        }
        Ok(())
    }
}

/// Starts this program as a process of the cluster.
fn start(arguments: &[&str]) -> Result<Child> {
    let program = std::env::current_exe().map_err(|error| failed("find this program", &error))?;
    let mut command = Command::new(program);
    command.args(arguments).arg("--beside-parent");
    // Its end of the pipe is closed when this process ends, however it does.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
    command.spawn().map_err(|error| failed("start a process of the cluster", &error))
}

/// Ports that nobody has at this moment.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let bind = |_| TcpListener::bind((LOOPBACK, 0));
    let held: std::io::Result<Vec<TcpListener>> = (0..count).map(bind).collect();
    let ports = held.and_then(|held| held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect());
    ports.map_err(|error| failed("find free ports on loopback", &error))
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(about) if about.is_dir() => bytes_below(&entry.path()),
            Ok(about) => about.len(),
            Err(_) => 0,
        })
        .sum()
}

/// A query on the cluster, in one state of its files. A way is named by its store.
pub(crate) struct Turns<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) cluster: &'a Cluster,
    pub(crate) folder: &'a Path,
    pub(crate) files: &'a Files,
    pub(crate) query: &'a Query,
    pub(crate) state: State,
    /// The answer of a single process.
    pub(crate) expected: &'a [String],
}

impl Work for Turns<'_> {
    type Answer = Vec<String>;

    fn prepare(&mut self, _: usize, _: u64) -> Result<()> {
        self.files.make(self.state)
    }

    fn run(&mut self, way: usize, _: u64) -> Result<(Vec<String>, u64)> {
        let scheme = ["file", "nowait"][way];
        let answer = self.runtime.block_on(self.cluster.answer(self.query, Some((self.folder, scheme))))?;
        if answer != self.expected {
            return Err(failed("answer as a single process does", &format!("{answer:?} is not {:?}", self.expected)));
        }
        Ok((answer, 0))
    }
}
