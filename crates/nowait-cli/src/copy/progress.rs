//! Progress of a copy: a line on stderr, and the totals at its end.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use nowait_copy::{Progress, Report};

use crate::show::counted;

/// A copy that ends before shows nothing.
const FIRST: Duration = Duration::from_millis(500);
/// Between two looks at the counters, on a terminal and elsewhere.
const TERMINAL: Duration = Duration::from_millis(200);
const ELSEWHERE: Duration = Duration::from_secs(1);

/// Shows the progress and the limit on the rate until the other end of `ended` is dropped.
pub(super) fn show(progress: impl Fn() -> Progress, bytes_per_second_max: Option<u64>, ended: &Receiver<()>) {
    let is_terminal = io::stderr().is_terminal();
    let mut wait = FIRST;
    let mut is_shown = false;
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
        wait = if is_terminal { TERMINAL } else { ELSEWHERE };
        let text = line(&progress(), bytes_per_second_max);
        // If stderr is closed, progress is not needed.
        _ = match is_terminal {
            true => write!(io::stderr(), "\r\x1b[K{text}"),
            false => writeln!(io::stderr(), "{text}"),
        };
        is_shown = true;
    }
    if is_terminal && is_shown {
        _ = write!(io::stderr(), "\r\x1b[K");
    }
}

/// Prints the totals of a copy that has ended.
pub(super) fn show_total(report: &Report) {
    // If stderr is closed, the totals are not needed.
    _ = writeln!(io::stderr(), "{}", total(report));
}

fn total(report: &Report) -> String {
    let (bytes, files) = (bytes_text(report.bytes), counted(report.files, "file"));
    format!("{bytes} in {files}, {:.1} s in all", report.elapsed.as_secs_f64())
}

fn line(progress: &Progress, bytes_per_second_max: Option<u64>) -> String {
    let Progress { bytes, files, bytes_found, files_found, is_walked, .. } = *progress;
    let limit = bytes_per_second_max.map_or(String::new(), |max| format!(" (limit {}/s)", bytes_text(max)));
    let rate = format!("{}/s{limit}", bytes_text(progress.bytes_per_second() as u64));
    if !is_walked {
        return format!("{} in {files} files, {rate}", bytes_text(bytes));
    }
    let left = progress.time_left().map_or(String::new(), |left| format!(", {} left", time_text(left)));
    let (bytes, bytes_found) = (bytes_text(bytes), bytes_text(bytes_found));
    format!("{bytes} of {bytes_found}, {files} of {files_found} files, {rate}{left}")
}

/// `512 B`, `9.4 KiB`, `94 MiB`.
fn bytes_text(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1000.0 {
            let decimals = if unit == "B" || value >= 9.95 { 0 } else { 1 };
            return format!("{value:.decimals$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// `42 s`, `4:02`, `1:04:02`.
fn time_text(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The unit matters, since a bare number on the command line is in KiB.
    #[test]
    fn a_limit_on_the_rate_is_shown() {
        let shown = line(&Progress::default(), Some(20 << 10));
        assert!(shown.ends_with(", 0 B/s (limit 20 KiB/s)"), "{shown}");
        assert!(line(&Progress::default(), None).ends_with(", 0 B/s"));
    }

    #[test]
    fn sizes_and_times_are_short() {
        let sizes = [0, 999, 1000, 9_600, 1 << 20, 1_500 << 20, 3 << 40].map(bytes_text);
        assert_eq!(sizes, ["0 B", "999 B", "1.0 KiB", "9.4 KiB", "1.0 MiB", "1.5 GiB", "3.0 TiB"]);
        let times = [0, 59, 242, 3842].map(|seconds| time_text(Duration::from_secs(seconds)));
        assert_eq!(times, ["0 s", "59 s", "4:02", "1:04:02"]);
    }
}
