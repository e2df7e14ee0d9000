//! Counts false claims in reports: a way was measured as if it were two, and the verdict's rule calls
//! one of these behind the other.
//!
//! ```sh
//! for i in $(seq 50); do nowait bench cached reads --quick --json run-$i.json; done
//! cargo run --release -p nowait-bench --example controls -- run-*.json
//! ```
//!
//! Prints a line for each false claim, then the sum. Exit code 1 where there is one, 2 for a file
//! that is no report.

use std::process::ExitCode;

use nowait_bench::report::Report;

/// The reports of a file, one after the other.
fn read(path: &str) -> Result<Vec<Report>, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(path)?;
    Ok(serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>()?)
}

fn main() -> ExitCode {
    let (mut reports, mut controls, mut wrong) = (0, 0, 0);
    let mut distances = Vec::new();
    for path in std::env::args().skip(1) {
        let found = match read(&path) {
            Ok(found) => found,
            Err(error) => {
                eprintln!("controls: {path}: {error}; give what `nowait bench --json` wrote");
                return ExitCode::from(2);
            }
        };
        for report in found {
            reports += 1;
            for control in &report.controls {
                let Some(distance) = control.distance() else { continue };
                controls += 1;
                distances.push((distance - 1.0) * 100.0);
                if control.misleads(report.controls.len()) {
                    wrong += 1;
                    let (table, case, way) = (&control.table, &control.case, &control.way);
                    println!("{path}: {table} {case}: {way} is {distance:.3} times as fast as itself");
                }
            }
        }
    }
    distances.sort_by(f64::total_cmp);
    let at = |share: f64| distances.get((distances.len() as f64 * share) as usize).copied().unwrap_or(0.0);
    println!(
        "{wrong} false claims in {controls} controls of {reports} runs; a way is {:.1} % from itself in the middle, {:.1} % in \
         one control of ten",
        at(0.5),
        at(0.9)
    );
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
