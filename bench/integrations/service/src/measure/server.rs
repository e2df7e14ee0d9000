//! Processes: the service, and those that compute beside it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::ValueEnum;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};

use super::Result;
use crate::Way;

/// The service in a process of its own; killed when dropped.
pub(super) struct Server {
    child: Process,
    /// Where it listens.
    pub(super) address: String,
}

impl Server {
    pub(super) fn start(way: Way, dir: &Path) -> Result<Server> {
        let way = way.to_possible_value().ok_or("a way without a name")?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["serve", "--end-with-parent", "--listen", "127.0.0.1:0", "--way", way.get_name(), "--dir"])
            .arg(dir);
        let mut child = Process(command.stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on ").ok_or("the service did not start")?.to_owned();
        Ok(Server { child, address })
    }

    /// Processor time of all of its threads so far, kernel workers included.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(self.child.proc("stat"))?;
        // After the name, which may contain anything: proc_pid_stat(5), fields 14 and 15.
        let (_, fields) = stat.rsplit_once(')').ok_or("no name")?;
        let ticks: u64 =
            fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<std::result::Result<_, _>>()?;
        Ok(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
    }

    /// Most memory that was resident.
    pub(super) fn peak_mib(&self) -> Result<f64> {
        let status = fs::read_to_string(self.child.proc("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib / 1024.0)
    }

    /// Has it end as an operator would, and waits for that.
    pub(super) fn end(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child.0), Signal::TERM)?;
        let status = self.child.0.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the service ended with {status}").into()) }
    }
}

/// Processes that compute, until this is dropped.
#[derive(Default)]
pub(super) struct Occupied(#[expect(dead_code, reason = "killed when dropped")] Vec<Process>);

impl Occupied {
    pub(super) fn start(processes: usize) -> Result<Occupied> {
        let start = |_| Ok(Process(Command::new(std::env::current_exe()?).arg("occupy").spawn()?));
        (0..processes).map(start).collect::<Result<_>>().map(Occupied)
    }
}

/// Child that is killed when it is dropped.
struct Process(Child);

impl Process {
    fn proc(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.0.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
