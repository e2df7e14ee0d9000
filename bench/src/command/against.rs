//! `--from A.json --against B.json` compares two runs row by row.
//!
//! Rounds of two runs are independent, so they are not paired. The intervals do not cover changes
//! of the machine between the runs.

use serde::Serialize;

use super::show::{Colour, cells, grid, heading, lines};
use crate::report::figures::{compared, short};
use crate::report::{Report, Row};
use crate::stats::{OUTSIDE, Ratio, median};
use crate::table;

/// Comparison of a row that occurs in both runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    Better,
    Worse,
    CannotTell,
}

#[derive(Debug, Serialize)]
pub(super) struct Pair {
    table: String,
    case: String,
    way: String,
    /// Medians, in operations per second.
    from: f64,
    against: f64,
    /// Ratio of the first to the second, by geometric means, and its interval, which contains the
    /// true value in 19 of 20 rows. `None` for fewer than three rounds.
    ratio: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    pub(super) change: Change,
    #[serde(skip)]
    shown: [String; 2],
}

/// Compares the rows that occur in both runs. If two runs are alike and their rounds independent,
/// one comparison in 20 reports a row as better or worse.
pub(super) fn pairs(from: &Report, against: &Report) -> Vec<Pair> {
    let mut both = Vec::new();
    for row in from.rows.iter().filter(|row| table::ranks(&row.table)) {
        let key = |row: &Row| (row.table.clone(), row.case.clone(), row.way.clone());
        both.extend(against.rows.iter().find(|other| key(other) == key(row)).map(|other| (row, other)));
    }
    let alarm = OUTSIDE / both.len().max(1) as f64;
    let pair = |(row, other): &(&Row, &Row)| {
        let ratio = Ratio::of_runs(&row.rounds, &other.rounds);
        Pair {
            table: row.table.clone(),
            case: row.case.clone(),
            way: row.way.clone(),
            from: row.ops_per_s,
            against: other.ops_per_s,
            ratio: ratio.map(|ratio| ratio.middle()),
            low: ratio.map(|ratio| ratio.low()),
            high: ratio.map(|ratio| ratio.high()),
            change: match ratio {
                Some(ratio) if ratio.is_below(alarm) => Change::Worse,
                Some(ratio) if ratio.is_above(alarm) => Change::Better,
                _ => Change::CannotTell,
            },
            shown: [row, other].map(|row| short(compared(row))),
        }
    };
    both.iter().map(pair).collect()
}

/// Returns the pairs as a table, the differences of the machines, and a summary.
pub(super) fn shown(pairs: &[Pair], from: &Report, against: &Report, colour: Colour) -> String {
    let mut text = String::new();
    let other: Vec<_> = against.environment.lines();
    for (name, value) in from.environment.lines() {
        if let Some((_, before)) = other.iter().find(|(known, before)| *known == name && *before != value) {
            text += &format!("{name}: {value}; against: {before}\n");
        }
    }
    let names = ["row", "way", "from", "against", "ratio", "95 % interval", ""];
    let mut table = grid(names.map(heading).to_vec(), 2, colour);
    for pair in pairs {
        let figure = |value: Option<f64>| value.map_or("?".to_owned(), |value| format!("{value:.2}"));
        let [from, against] = &pair.shown;
        let word = match pair.change {
            Change::Better => "better",
            Change::Worse => "WORSE",
            Change::CannotTell => "cannot tell",
        };
        let row = format!("{} {}", pair.table, pair.case);
        let interval = format!("{}–{}", figure(pair.low), figure(pair.high));
        table.add_row(cells([&row, &pair.way, from, against, &figure(pair.ratio), &interval, word].map(str::to_owned)));
    }
    let count = |change| pairs.iter().filter(|pair| pair.change == change).count();
    text += &lines(&table);
    let middle = median(&pairs.iter().filter_map(|pair| pair.ratio).collect::<Vec<_>>());
    text += &format!("the median of all ratios is {middle:.2}: a change of all ways is one of the machine\n");
    text + &format!(
        "{} better, {} worse, {} cannot tell; not compared (in one run only, or not ranked by speed): {}\n",
        count(Change::Better),
        count(Change::Worse),
        count(Change::CannotTell),
        from.rows.len() + against.rows.len() - 2 * pairs.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(speeds: [(&str, [f64; 5]); 3]) -> Report {
        let row = |(way, rounds): (&str, [f64; 5])| Row {
            table: "reads".to_owned(),
            case: "depth=1".to_owned(),
            way: way.to_owned(),
            ops_per_s: rounds[2],
            rounds: rounds.to_vec(),
            ..Row::default()
        };
        Report { rows: speeds.map(row).to_vec(), ..Report::default() }
    }

    #[test]
    fn rows_that_both_have_are_compared() {
        let calm = |speed: f64| [0.99, 1.01, 1.0, 1.02, 0.98].map(|part| part * speed);
        let noisy = |speed: f64| [0.5, 2.0, 1.0, 1.5, 0.7].map(|part| part * speed);
        let from = run([("pread", calm(110.0)), ("nowait", calm(50.0)), ("ring", noisy(90.0))]);
        let mut against = run([("pread", calm(100.0)), ("nowait", calm(100.0)), ("ring", noisy(100.0))]);
        against.rows.push(Row { table: "reads".to_owned(), way: "other".to_owned(), ..Row::default() });
        let pairs = pairs(&from, &against);
        let changes: Vec<Change> = pairs.iter().map(|pair| pair.change).collect();
        assert_eq!(changes, [Change::Better, Change::Worse, Change::CannotTell]);
        let text = shown(&pairs, &from, &against, Colour::Off);
        assert!(text.contains("1 better, 1 worse, 1 cannot tell; "), "{text}");
        assert!(text.contains("is 0.90:") && text.ends_with(": 1\n"), "{text}");
    }
}
