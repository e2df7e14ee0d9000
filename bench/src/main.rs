//! `nowait bench` without the rest of the command.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use nowait_bench::command::{Bench, run};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

#[derive(Parser)]
#[command(name = "nowait bench", version)]
struct Command {
    #[command(flatten)]
    bench: Bench,
}

fn main() -> ExitCode {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        if let Err(error) = flag::register(signal, cancel.clone()) {
            eprintln!("nowait bench: signal {signal} ends it at once: {error}");
        }
    }
    // A write beyond RLIMIT_FSIZE fails, instead of a signal that ends the process with its files left.
    if let Err(error) = flag::register(SIGXFSZ, Arc::default()) {
        eprintln!("nowait bench: a limit of file sizes ends it: {error}");
    }
    match run(&Command::parse().bench, option_env!("NOWAIT_COMMIT"), &cancel) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not `eprintln`, which panics where standard error is closed: the exit code still counts.
            let _ = writeln!(io::stderr(), "nowait bench: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}
