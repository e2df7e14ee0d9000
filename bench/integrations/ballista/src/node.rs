//! The processes of a cluster, and what makes them read through nowait's store.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use ballista_core::utils::default_session_builder;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionConfig;
use nowait_bench::Result;
use nowait_object_store::Options;
use nowait_object_store::v0_13::NowaitFileSystem;

use crate::failed;

/// An executor that was not heard of for so long is given up, and what it had begun is done by others.
const SILENCE_S: u64 = 5;
const HEARTBEAT_S: u64 = 1;

/// Has `nowait:///` lead to nowait's store. `file:///` stays the stock one's; a cluster of your own
/// would register both, and change no path in its tables.
pub(crate) fn register(environment: &RuntimeEnv) {
    NowaitFileSystem::register(Options::new(), |url, store| {
        if url.scheme() == "nowait" {
            environment.register_object_store(url, store);
        }
    });
}

#[derive(Debug, clap::Args)]
pub(crate) struct Scheduler {
    /// Address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,

    #[arg(long, value_name = "PORT", default_value_t = 50050)]
    port: u16,

    /// End when standard input does: when whoever started this is gone
    #[arg(long)]
    beside_parent: bool,
}

impl Scheduler {
    pub(crate) async fn run(&self) -> Result<()> {
        end_with_parent(self.beside_parent);
        let config = SchedulerConfig {
            bind_host: self.host.clone(),
            bind_port: self.port,
            external_host: self.host.clone(),
            executor_timeout_seconds: SILENCE_S,
            expire_dead_executor_interval_seconds: HEARTBEAT_S,
            // It lists the files of tables, and plans with what their footers say.
            override_session_builder: Some(Arc::new(|config: SessionConfig| {
                let session = default_session_builder(config)?;
                register(session.runtime_env());
                Ok(session)
            })),
            ..SchedulerConfig::default()
        };
        let address = format!("{}:{}", self.host, self.port);
        let address = address.parse().map_err(|error| failed("listen on that address", &error))?;
        let cluster = BallistaCluster::new_from_config(&config).await;
        let cluster = cluster.map_err(|error| failed("start the scheduler", &error))?;
        start_server(cluster, address, Arc::new(config)).await.map_err(|error| failed("go on as a scheduler", &error))
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Executor {
    /// Address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,

    /// Port from which others take shuffled rows
    #[arg(long, value_name = "PORT", default_value_t = 50051)]
    port: u16,

    /// Port on which the scheduler hands out tasks
    #[arg(long, value_name = "PORT", default_value_t = 50052)]
    task_port: u16,

    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    scheduler_host: String,

    #[arg(long, value_name = "PORT", default_value_t = 50050)]
    scheduler_port: u16,

    /// Directory for shuffled rows
    #[arg(long, value_name = "DIR")]
    work_dir: PathBuf,

    /// End when standard input does: when whoever started this is gone
    #[arg(long)]
    beside_parent: bool,
}

impl Executor {
    pub(crate) async fn run(&self) -> Result<()> {
        end_with_parent(self.beside_parent);
        let work_dir = self.work_dir.clone();
        let config = ExecutorProcessConfig {
            bind_host: self.host.clone(),
            external_host: Some(self.host.clone()),
            port: self.port,
            grpc_port: self.task_port,
            scheduler_host: self.scheduler_host.clone(),
            scheduler_port: self.scheduler_port,
            scheduler_connect_timeout_seconds: 20,
            work_dir: Some(self.work_dir.display().to_string()),
            executor_heartbeat_interval_seconds: HEARTBEAT_S,
            // The environment of every session's tasks.
            override_runtime_producer: Some(Arc::new(move |_: &SessionConfig| {
                let environment = RuntimeEnvBuilder::new().with_temp_file_path(work_dir.clone()).build_arc()?;
                register(&environment);
                Ok(environment)
            })),
            ..ExecutorProcessConfig::default()
        };
        start_executor_process(Arc::new(config)).await.map_err(|error| failed("go on as an executor", &error))
    }
}

/// Ends this process when its standard input does. However its parent ended, nothing stays behind.
fn end_with_parent(wanted: bool) {
    if wanted {
        thread::spawn(|| {
            let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
    }
}
