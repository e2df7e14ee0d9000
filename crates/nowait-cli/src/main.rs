//! The command `nowait`.

#![forbid(unsafe_code)]

/// A line of a result: see [`show::say`].
macro_rules! say {
    ($($argument:tt)*) => { crate::show::say(format_args!("{}\n", format_args!($($argument)*))) };
}

mod bench;
mod cli;
mod copy;
mod interrupt;
mod log;
mod probe;
mod show;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    nowait_bench::sys::ignore_file_size_signal();
    let result = match cli::Cli::parse().command {
        cli::Command::Bench(options) => bench::run(&options).map_err(cli::Failure::from),
        cli::Command::Copy(args) => copy::run(&args),
        cli::Command::Log(command) => log::run(command),
        cli::Command::Probe(options) => probe::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(cli::Failure { code, message }) => {
            show::complain(message);
            ExitCode::from(code)
        }
    }
}
