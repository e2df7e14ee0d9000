//! `nowait bench` without the rest of the command.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use nowait_bench::command::{Bench, run};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

#[derive(Parser)]
#[command(name = "nowait bench", version)]
struct Command {
    #[command(flatten)]
    bench: Bench,
}

fn main() -> ExitCode {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        if signal == SIGHUP && hangup_is_ignored() {
            continue;
        }
        if let Err(error) = flag::register(signal, cancel.clone()) {
            eprintln!("nowait bench: signal {signal} ends it at once: {error}");
        }
    }
    // Without a handler, a write beyond RLIMIT_FSIZE would end the process by a signal, and leave
    // its files.
    if let Err(error) = flag::register(SIGXFSZ, Arc::default()) {
        eprintln!("nowait bench: a limit of file sizes ends it: {error}");
    }
    match run(&Command::parse().bench, option_env!("NOWAIT_COMMIT"), &cancel) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not `eprintln`, which panics if standard error is closed, and would change the exit
            // code.
            let _ = writeln!(io::stderr(), "nowait bench: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

/// Returns whether this runs under `nohup`: a long run continues when its terminal is closed.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}
