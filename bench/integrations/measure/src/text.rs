//! The report as text: a line for each way of each case, and geometric means over cases.

use nowait_bench::report::{Report, Row};
use nowait_bench::stats::Ratio;

use crate::files::State;

/// Lines of all tables. A ratio is that of speeds: the geometric mean of the rounds' ratios to the
/// first way, with its interval.
pub(crate) fn of(report: &Report) -> String {
    let mut text = String::new();
    for table in report.tables() {
        let cases = report.cases(table);
        let longest = cases.iter().map(|(case, _)| case.len()).max().unwrap_or(0);
        let ways = report.ways_of(table).iter().map(|way| way.len()).max().unwrap_or(0);
        let first = report.ways_of(table).first().copied().unwrap_or_default();
        text +=
            &format!("\n{table:<longest$}  {:<ways$} {:>10}  {:>9} {:>9}  × {first}\n", "", "ms", "spread", "CPU ms");
        for (case, rows) in &cases {
            for (index, row) in rows.iter().enumerate() {
                let case = if index == 0 { case } else { "" };
                text += &format!("{case:<longest$}  {:<ways$} {}\n", row.way, figures(row, rows[0]));
            }
        }
        text += &means(&cases, first);
    }
    for note in &report.notes {
        text += &format!("note: {} ({})\n", note.text, note.code.name());
    }
    if let Some(why) = &report.partial {
        text += &format!("PARTIAL: {why}\n");
    }
    text
}

/// A row's median in milliseconds of an operation, its fastest and slowest round as shares of it, and its ratio.
fn figures(row: &Row, first: &Row) -> String {
    let (slowest, fastest) = row.spread();
    let spread = format!("{:.2}–{:.2}", 1.0 / fastest, 1.0 / slowest);
    let cpu_ms = row.cpu_us_per_op.total / 1e3;
    let line = format!("{:>10}  {spread:>9} {:>9}", digits(1e3 / row.ops_per_s), digits(cpu_ms));
    if row.way == first.way {
        return line;
    }
    match Ratio::of_rounds(&row.rounds, &first.rounds) {
        Some(ratio) => format!("{line}  {:.2} ({:.2}–{:.2})", ratio.middle(), ratio.low(), ratio.high()),
        None => format!("{line}  {:.2}", row.ops_per_s / first.ops_per_s),
    }
}

/// Two decimals; four of short operations.
fn digits(ms: f64) -> String {
    if ms < 1.0 { format!("{ms:.4}") } else { format!("{ms:.2}") }
}

/// The ratio of medians, in the geometric mean over the cases of a state, and where it is lowest.
fn means(cases: &[(&str, Vec<&Row>)], first: &str) -> String {
    let mut text = String::new();
    for state in State::ALL {
        let of_state = cases.iter().filter(|(case, _)| case.split(' ').any(|word| word == state.name()));
        let mut by_way: Vec<(&str, Vec<(f64, &str)>)> = Vec::new();
        for (case, rows) in of_state {
            let Some(base) = rows.iter().find(|row| row.way == first) else { continue };
            for row in rows.iter().filter(|row| row.way != first) {
                let ratio = (row.ops_per_s / base.ops_per_s, *case);
                match by_way.iter_mut().find(|(way, _)| *way == row.way) {
                    Some((_, ratios)) => ratios.push(ratio),
                    None => by_way.push((&row.way, vec![ratio])),
                }
            }
        }
        for (way, ratios) in by_way.iter().filter(|(_, ratios)| ratios.len() > 1) {
            let mean = (ratios.iter().map(|(ratio, _)| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
            let least = ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0));
            let least = least.map_or_else(String::new, |(ratio, case)| format!("; at least {ratio:.2} ({case})"));
            text += &format!("geometric mean, {}: {way} {mean:.3} × {first}{least}\n", state.name());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometric_mean_is_that_of_a_state_and_names_its_least() {
        let row = |case: &str, way: &str, speed: f64| Row {
            table: "queries".into(),
            case: case.into(),
            way: way.into(),
            ops_per_s: speed,
            rounds: vec![speed; 3],
            ..Row::default()
        };
        let pair = |case, speed| [row(case, "stock", 10.0), row(case, "nowait", speed)];
        let rows = [pair("a cold", 20.0), pair("b cold", 80.0), pair("a hot", 9.0), pair("b hot", 10.0)].concat();
        let text = of(&Report { rows, ..Report::default() });
        assert!(text.contains("geometric mean, cold: nowait 4.000 × stock; at least 2.00 (a cold)"), "{text}");
        assert!(text.contains("geometric mean, hot: nowait 0.949 × stock; at least 0.90 (a hot)"), "{text}");
        assert!(text.contains("nowait      50.00"), "{text}");
    }
}
