//! The table of a run.

use std::fmt::Write;

use super::Rounds;
use super::case::Case;
use super::client::Round;

type Figure = fn(&Round) -> f64;

/// Columns of the table.
const FIGURES: [(&str, Figure); 4] = [
    ("requests/s", |round| round.requests_per_s),
    ("p50 µs", |round| round.p50_us),
    ("p99 µs", |round| round.p99_us),
    ("CPU µs", |round| round.cpu_us),
];

/// Each cell: `nowait`, `tokio::fs`, and the median of the rounds' ratios with its extremes.
pub(super) fn of(rows: &[(Case, Rounds)]) -> String {
    let mut text = String::from("| case |");
    FIGURES.iter().for_each(|(name, _)| _ = write!(text, " {name} |"));
    text += " peak MiB |\n|---|---|---|---|---|---|\n";
    for (case, rounds) in rows {
        _ = write!(text, "| {} |", case.name());
        for (_, figure) in FIGURES {
            let [nowait, tokio] = rounds.ways.each_ref().map(|way| way.iter().map(figure).collect::<Vec<_>>());
            let ratios = nowait.iter().zip(&tokio).map(|(nowait, tokio)| nowait / tokio).collect::<Vec<_>>();
            let [nowait, tokio] = [nowait, tokio].map(|figures| short(of_sorted(figures).1));
            let (low, median, high) = of_sorted(ratios);
            _ = write!(text, " {nowait} : {tokio} = **{median:.2}** ({low:.2}–{high:.2}) |");
        }
        let [nowait, tokio] = rounds.peak_mib;
        _ = writeln!(text, " {nowait:.0} : {tokio:.0} |");
    }
    text
}

/// Returns the figures of all rounds, for later evaluation.
pub(super) fn tsv(rows: &[(Case, Rounds)]) -> String {
    let mut text = String::from("case\tway\tround");
    FIGURES.iter().for_each(|(name, _)| _ = write!(text, "\t{name}"));
    text.push('\n');
    for (case, rounds) in rows {
        for (way, rounds) in ["nowait", "tokio"].iter().zip(&rounds.ways) {
            for (number, round) in rounds.iter().enumerate() {
                _ = write!(text, "{}\t{way}\t{number}", case.name());
                FIGURES.iter().for_each(|(_, figure)| _ = write!(text, "\t{:.1}", figure(round)));
                text.push('\n');
            }
        }
    }
    text
}

/// Lowest, median and highest.
fn of_sorted(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let last = figures.len() - 1;
    (figures[0], (figures[last / 2] + figures[last.div_ceil(2)]) / 2.0, figures[last])
}

/// Three digits.
fn short(figure: f64) -> String {
    match figure {
        _ if figure >= 9950.0 => format!("{:.1}k", figure / 1000.0),
        _ if figure >= 99.5 => format!("{figure:.0}"),
        _ => format!("{figure:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_digits() {
        assert_eq!(of_sorted(vec![3.0, 1.0, 2.0]), (1.0, 2.0, 3.0));
        assert_eq!(of_sorted(vec![4.0, 1.0]), (1.0, 2.5, 4.0));
        assert_eq!([12_345.6, 9940.0, 123.4, 1.25].map(short), ["12.3k", "9940", "123", "1.2"]);
    }
}
