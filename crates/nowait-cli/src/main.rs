//! The command `nowait`.

#![forbid(unsafe_code)]

/// A line of a result: see [`show::say`].
macro_rules! say {
    ($($argument:tt)*) => { crate::show::say(format_args!("{}\n", format_args!($($argument)*))) };
}

mod cli;
mod copy;
mod interrupt;
mod log;
mod probe;
mod show;

use std::process::ExitCode;

fn main() -> ExitCode {
    let command = cli::parse();
    let result = interrupt::survive_file_size_limit().map_err(cli::Failure::from).and_then(|()| match command {
        #[cfg(feature = "bench")]
        cli::Command::Bench(options) => bench(&options),
        cli::Command::Copy(args) => copy::run(&args),
        cli::Command::Log(command) => log::run(command),
        cli::Command::Probe(options) => probe::run(&options),
        cli::Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli::command(), "nowait", &mut script);
            say!("{}", String::from_utf8_lossy(&script).trim_end());
            Ok(())
        }
        cli::Command::Man { dir } => cli::write_manual(&dir),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(cli::Failure { code, message }) => {
            show::complain(message);
            ExitCode::from(code)
        }
    }
}

#[cfg(feature = "bench")]
fn bench(options: &nowait_bench::command::Bench) -> Result<(), cli::Failure> {
    let interrupted = interrupt::interrupted()?;
    Ok(nowait_bench::command::run(options, option_env!("NOWAIT_COMMIT"), &interrupted)?)
}
