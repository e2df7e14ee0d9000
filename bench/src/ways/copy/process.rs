//! The processes of commands that are measured.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Interval at which the wait for a command checks for an interrupt.
const ASKED_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

pub(super) fn not_installed(program: &str) -> Option<String> {
    tried(Command::new(program).arg("--version")).err()
}

/// Runs it once, for its status.
pub(super) fn tried(command: &mut Command) -> Result<ExitStatus, String> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let name = command.get_program().to_string_lossy();
    status.map_err(|error| format!("{name} cannot be started: {error}; install it, or put its folder into PATH"))
}

/// Runs a command that reads and writes files by their names to its end, or until the user wants
/// to stop.
pub(super) fn ended(command: &mut Command, cancel: &AtomicBool) -> io::Result<()> {
    Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()))?.end(cancel)
}

/// A command that does not outlive us after an error.
struct Running(Child);

impl Running {
    /// In English, so that a full disk is known by its message. In a group of its own, so that
    /// Ctrl-C is not taken for its failure.
    fn start(command: &mut Command) -> io::Result<Self> {
        command.env("LC_ALL", "C").process_group(0).stderr(Stdio::piped()).spawn().map(Self)
    }

    fn end(&mut self, cancel: &AtomicBool) -> io::Result<()> {
        let child = &mut self.0;
        // Where there is no such descriptor, the user has to wait until the command ends.
        if let Ok(ended) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
            let mut polled = [PollFd::new(&ended, PollFlags::IN)];
            while matches!(poll(&mut polled, Some(&ASKED_EVERY)), Ok(0) | Err(Errno::INTR)) {
                if cancel.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
        }
        let mut message = String::new();
        child.stderr.take().map_or(Ok(0), |mut errors| errors.read_to_string(&mut message))?;
        let status = child.wait()?;
        if !status.success() {
            let full = message.contains("No space left on device");
            let kind = if full { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
            return Err(io::Error::new(kind, format!("{status}: {}", message.trim())));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of one that has been waited for, these do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
