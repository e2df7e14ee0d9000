//! The command `nowait`.

mod bench;
mod cli;
mod show;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let result = match cli::Cli::parse().command {
        cli::Command::Bench(options) => bench::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nowait: {error}");
            ExitCode::from(cli::exit_code(error.kind()))
        }
    }
}
