//! Copies a tree and says what became of it: `cargo run --example backup -- SRC DST`.

use std::process::ExitCode;

use nowait_copy::{Options, copy};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [source, target] = arguments.as_slice() else {
        eprintln!("usage: backup SRC DST");
        return ExitCode::from(2);
    };
    let report = match copy(source, target, &Options::new()) {
        Ok(report) => report,
        Err(failure) => {
            eprintln!("{failure}");
            return ExitCode::from(3);
        }
    };
    for failure in report.failures.iter().chain(&report.warnings) {
        eprintln!("{failure}");
    }
    println!(
        "{} files, {} directories, {} bytes in {:?}",
        report.files, report.directories, report.bytes, report.elapsed
    );
    if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
