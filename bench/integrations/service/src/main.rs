//! An HTTP service on `nowait`, the same service on `tokio::fs`, and a comparison of both by wrk(1).
//!
//! `with_nowait.rs` is the example, `service.rs` the HTTP around it. docs/guide/service.md describes both.

mod measure;
mod range;
mod service;
#[cfg(test)]
mod tests;
mod with_nowait;
mod with_tokio;

use std::error::Error;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::net::TcpListener;

use crate::with_nowait::WithNowait;
use crate::with_tokio::WithTokio;

#[derive(Parser)]
#[command(version, about)]
enum Command {
    /// Serves the files of a directory until SIGINT or SIGTERM
    Serve(Serve),
    /// Compares both ways by wrk(1), on this machine
    Measure(measure::Options),
    /// Occupies a processor until it is killed
    #[command(hide = true)]
    Occupy,
}

#[derive(clap::Args)]
struct Serve {
    /// Way of file I/O
    #[arg(long, value_enum, default_value_t = Way::Nowait)]
    way: Way,

    /// Directory of the service: `files` and the log are made there
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// End with the process that started this one
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    Nowait,
    Tokio,
}

fn main() -> Result<(), Box<dyn Error>> {
    match Command::parse() {
        Command::Serve(options) => {
            if options.end_with_parent {
                set_parent_process_death_signal(Some(Signal::TERM))?;
            }
            Ok(serve(&options)?)
        }
        Command::Measure(options) => measure::run(&options),
        Command::Occupy => {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            loop {
                std::hint::spin_loop();
            }
        }
    }
}

#[tokio::main]
async fn serve(options: &Serve) -> io::Result<()> {
    let files = make_dir(&options.dir)?;
    let listener = TcpListener::bind(options.listen).await?;
    match options.way {
        Way::Nowait => service::serve(listener, WithNowait::new(&options.dir).await?, &files).await,
        Way::Tokio => service::serve(listener, WithTokio::new(&options.dir).await?, &files).await,
    }
}

/// Makes the directory of a service; returns that of its files.
fn make_dir(dir: &Path) -> io::Result<PathBuf> {
    let files = dir.join("files");
    fs::create_dir_all(&files)?;
    Ok(files)
}
