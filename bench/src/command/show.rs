//! The tables as text, at most 100 columns wide.
//!
//! A table of speeds has a line per case and a column per way. Each cell contains the speed, its
//! ratio to the best of the line, and that ratio as a bar. Short bars in a column show where a way
//! collapses.

use crate::machine::environment::Environment;
use crate::report::figures::{
    COLLAPSED, COLUMNS, MEANINGS, best_compared, compared, known, meaning, share, short, title,
};
use crate::report::notes::Code;
use crate::report::verdict::sentences;
use crate::report::{Report, Row};
use crate::table;
use crate::table::columns::Column;
use comfy_table::{Attribute, Cell, CellAlignment, Color, Table as Grid};

/// Permission to write escape sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    On,
    Off,
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Replacements of the other special characters if the locale is not UTF-8.
const ASCII: [(char, char); 7] = [('▼', 'v'), ('≈', '~'), ('×', 'x'), ('–', '-'), ('µ', 'u'), ('…', '~'), ('·', '.')];

/// Returns whether the locale of this process uses UTF-8 (locale(7)).
pub(crate) fn is_utf8_locale() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(std::env::var_os).find(|value| !value.is_empty());
    let name = set.unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    name.contains("utf-8") || name.contains("utf8")
}

/// Replaces the bars by digits from 1 to 8, and other characters of the texts by similar ones.
pub(crate) fn ascii(text: &str) -> String {
    let replacement = |character: char| {
        let bar = BARS.iter().zip('1'..).find(|(bar, _)| **bar == character).map(|(_, digit)| digit);
        bar.or_else(|| ASCII.iter().find(|(from, _)| *from == character).map(|(_, to)| *to)).unwrap_or(character)
    };
    text.chars().map(replacement).collect()
}

/// Maximum number of ways in a block; fewer if names are long.
const WAYS_ABREAST: usize = 6;
pub(crate) const WIDTH: usize = 100;
const GAP: usize = 2;
/// Width of a cell with a speed.
const CELL: usize = 11;
pub(crate) fn environment(environment: &Environment) -> String {
    let lines = environment.lines().into_iter().map(|(name, value)| format!("{name:<8} {value}\n"));
    lines.collect::<String>() + &under_load(environment) + "\n"
}

pub(crate) fn under_load(environment: &Environment) -> String {
    environment.load.warning().map_or_else(String::new, |warning| wrapped(&warning, "") + "\n")
}

pub(crate) fn report(report: &Report, details: bool, colour: Colour) -> String {
    let mut text = String::new();
    if let Some(why) = &report.partial {
        let rows = match report.rows.is_empty() {
            true => "No case was completed.",
            false => "The rows below are complete; missing rows were not measured.",
        };
        text += &format!("PARTIAL: {why}. {rows}\n\n");
    }
    for table in report.tables() {
        text += &format!("{}\n", title(table));
        text += &speeds(report, table, colour);
        let own = table::known(table).grids;
        for grid in own.iter().filter(|grid| details || !grid.is_detail) {
            text += &figures(report, table, grid.name, grid.columns.iter(), colour);
        }
        if details {
            let printed = COLUMNS.iter().filter(|column| PRINTED.contains(&column.name));
            text += &figures(report, table, "all", printed, colour);
        }
        text.push('\n');
    }
    text.extend(summary(report, colour));
    let sentences = sentences(report);
    if !sentences.is_empty() {
        text += "\nVerdict\n";
    }
    for sentence in sentences {
        // The first line is not indented.
        text += &format!("  * {}\n", wrapped(&sentence, "    ").trim_start());
    }
    for note in &report.notes {
        text += &format!("note: {} ({})\n", note.text, note.code.name());
    }
    text + &legend(report, details)
}

/// Explains a note and what to do about it.
pub(crate) fn explanation(code: Code) -> String {
    format!("{}\n{}\n", code.name(), wrapped(code.meaning(), "  "))
}

/// Explains each kind of note in the report.
pub(crate) fn explanations(report: &Report) -> String {
    let here = Code::ALL.iter().filter(|code| report.notes.iter().any(|note| note.code == **code));
    here.map(|code| explanation(*code)).collect()
}

pub(crate) fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::from(indent)];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a first line");
        let begun = line.len() > indent.len();
        if begun && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{indent}{word}"));
        } else {
            *line += if begun { " " } else { "" };
            *line += word;
        }
    }
    lines.join("\n")
}

/// Legend of cells and ways.
fn legend(report: &Report, details: bool) -> String {
    if report.rows.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\nA cell: the speed, its ratio to the best of the line, and that ratio as a bar; ▼: below half.\n",
    );
    let ways = report.ways();
    let longest = ways.iter().map(|way| way.len()).max().unwrap_or(0);
    for way in ways {
        let meaning = wrapped(meaning(report, way), &" ".repeat(longest + 2 * GAP));
        text += &format!("  {way:<longest$}  {}\n", meaning.trim_start());
    }
    if details {
        text += &format!("\n{}\n", wrapped(MEANINGS, ""));
    }
    text.push('\n');
    text
}

/// Returns a line per case and a column per way, in several blocks if there are many ways.
fn speeds(report: &Report, table: &str, colour: Colour) -> String {
    let cases = report.cases(table);
    let ways: Vec<&str> = report.ways_of(table);
    let mut text = String::new();
    let names = GAP + cases.iter().map(|(case, _)| case.len()).max().unwrap_or(0);
    let width = |ways: &[&str]| names + ways.iter().map(|way| GAP + way.len().max(CELL)).sum::<usize>();
    let in_blocks = |blocks: usize| ways.chunks(ways.len().div_ceil(blocks).max(1));
    let fewest = ways.len().div_ceil(WAYS_ABREAST).max(1);
    let fits = |blocks: &usize| in_blocks(*blocks).all(|ways| width(ways) <= WIDTH);
    let blocks = (fewest..ways.len()).find(fits).unwrap_or(ways.len().max(1));
    for ways in in_blocks(blocks) {
        let header = std::iter::once(heading("")).chain(ways.iter().map(|way| heading(way)));
        let mut grid = grid(header.collect(), GAP as u16, colour);
        for (case, rows) in &cases {
            let best = best_compared(rows);
            let cell = |row: &&Row| speed(compared(row), compared(row) / best);
            let of_way = |way: &&str| rows.iter().find(|row| row.way == *way).map(cell);
            let cells = ways.iter().map(|way| of_way(way).unwrap_or_else(|| Cell::new("")));
            grid.add_row(std::iter::once(Cell::new(case)).chain(cells));
        }
        text += &lines(&grid);
    }
    text
}

/// `79.1k 1.0 █`, `18.0k .23▼▂`
fn speed(value: f64, ratio: f64) -> Cell {
    let text = format!("{} {}{}{}", short(value), share(ratio), mark(ratio), bar(ratio));
    let cell = Cell::new(text).set_alignment(CellAlignment::Right);
    if ratio < COLLAPSED {
        cell.fg(Color::Red)
    } else if ratio >= 0.95 {
        cell.fg(Color::Green)
    } else {
        cell
    }
}

fn mark(ratio: f64) -> char {
    if ratio < COLLAPSED { '▼' } else { ' ' }
}

fn bar(ratio: f64) -> char {
    BARS[((ratio * 8.0).ceil() as usize).clamp(1, 8) - 1]
}

/// Returns a line per way under each case, with the columns that any row has. An unknown figure is
/// a `?`. Empty if no row has any.
fn figures<'a>(
    report: &Report,
    table: &str,
    name: &str,
    columns: impl Iterator<Item = &'a Column>,
    colour: Colour,
) -> String {
    let columns = known(report, table, columns);
    let shown = |gap: usize| {
        let header = std::iter::once(name).chain(columns.iter().map(|column| column.name));
        let mut grid = grid(header.map(heading).collect(), gap as u16, colour);
        let told = |row: &&Row| columns.iter().any(|column| (column.cell)(row).is_some());
        for (case, rows) in report.cases(table).into_iter().filter(|(_, rows)| rows.iter().any(told)) {
            grid.add_row([Cell::new(case).add_attribute(Attribute::Bold)]);
            for row in rows {
                let figures = columns.iter().map(|column| (column.cell)(row).unwrap_or_else(|| "?".to_owned()));
                grid.add_row(cells(std::iter::once(format!("  {}", row.way)).chain(figures)));
            }
        }
        lines(&grid)
    };
    match shown(GAP) {
        _ if columns.is_empty() => String::new(),
        wide if wide.lines().any(|line| line.chars().count() > WIDTH) => shown(1),
        wide => wide,
    }
}

/// Names of the [`COLUMNS`] that fit into a line.
const PRINTED: [&str; 12] =
    ["per s", "min–max", "p50 µs", "p99 µs", "max µs", "CPU µs", "ring", "pool", "system", "csw", "punts", "inline"];

/// The worst case of each way; `None` if no table ranks ways.
fn summary(report: &Report, colour: Colour) -> Option<String> {
    let worst = report.worst(table::ranks);
    if worst.is_empty() {
        return None;
    }
    let mut grid = grid(["way", "worst ratio to the best", "where"].into_iter().map(heading).collect(), 2, colour);
    for (ratio, row) in worst {
        let cell = Cell::new(format!("{}{}{}", share(ratio), mark(ratio), bar(ratio)));
        let cell = cell.set_alignment(CellAlignment::Right);
        let cell = if ratio < COLLAPSED { cell.fg(Color::Red) } else { cell };
        grid.add_row([Cell::new(&row.way), cell, Cell::new(format!("{} {}", row.table, row.case))]);
    }
    Some(format!("Where each way is worst (▼: below {COLLAPSED} of the best)\n{}", lines(&grid)))
}

pub(crate) fn heading(name: &str) -> Cell {
    Cell::new(name).set_alignment(CellAlignment::Right).add_attribute(Attribute::Bold)
}

/// Aligns figures to the right and names to the left.
pub(crate) fn cells(texts: impl IntoIterator<Item = String>) -> Vec<Cell> {
    let align = |text: &String| {
        let name = text.trim_start().starts_with(char::is_alphabetic);
        if name { CellAlignment::Left } else { CellAlignment::Right }
    };
    texts.into_iter().map(|text| Cell::new(&text).set_alignment(align(&text))).collect()
}

/// A table without lines, `gap` spaces between its columns.
pub(crate) fn grid(header: Vec<Cell>, gap: u16, colour: Colour) -> Grid {
    let mut grid = Grid::new();
    grid.load_preset(comfy_table::presets::NOTHING).set_header(header);
    for column in grid.column_iter_mut() {
        column.set_padding((0, gap));
    }
    match colour {
        Colour::On => grid.enforce_styling(),
        Colour::Off => grid.force_no_tty(),
    };
    grid
}

pub(crate) fn lines(grid: &Grid) -> String {
    grid.lines().map(|line| format!("  {}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let row = |case: &str, way: &str, ops_per_s| {
            let mut row = Row::default();
            (row.table, row.case, row.way) = ("gather".to_owned(), case.to_owned(), way.to_owned());
            (row.ops_per_s, row.rounds) = (ops_per_s, vec![ops_per_s]);
            row
        };
        let ways = ["pread", "threads", "willneed", "libaio", "ring-plain", "ring", "nowait", "nowait-tokio"];
        let speeds = ways.iter().enumerate().map(|(i, way)| (*way, 12_345.0 * (i + 1) as f64));
        let rows = speeds.flat_map(|(way, speed)| {
            [row("records=4096,cached", way, speed), row("records=1,cold", way, 1.2e6 - 10.0 * speed)]
        });
        Report { rows: rows.collect(), ..Report::default() }
    }

    #[test]
    fn a_run_under_load_says_so_at_its_top_and_in_its_notes_and_nowhere_else() {
        let mut run = sample();
        run.environment.load.others = Some(0.98);
        crate::report::preflight::look_at_load(&mut run);
        let (top, rest) = (environment(&run.environment), report(&run, false, Colour::Off));
        let said = |text: &str, what: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").matches(what).count();
        assert_eq!([&top, &rest].map(|text| said(text, "UNDER LOAD")), [1, 0]);
        assert_eq!([&top, &rest].map(|text| said(text, "used 98 % of the processors")), [1, 1], "{top}{rest}");
        let calm = sample();
        assert!(!environment(&calm.environment).contains("UNDER LOAD"));
    }

    #[test]
    fn lines_fit_into_100_columns() {
        let text = report(&sample(), true, Colour::Off);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn the_legend_says_what_ways_from_elsewhere_do() {
        let mut report = sample();
        report.rows[0].way = "other".to_owned();
        report.ways.insert("other".to_owned(), "other 1.2.3: as it is".to_owned());
        assert!(super::report(&report, false, Colour::Off).contains("  other         other 1.2.3: as it is\n"));
    }

    #[test]
    fn long_names_of_ways_take_more_lines() {
        let mut report = sample();
        for row in &mut report.rows {
            row.way = format!("{}-with-a-long-name", row.way);
        }
        let text = super::report(&report, false, Colour::Off);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(report.ways().iter().all(|way| text.contains(way)));
    }

    #[test]
    fn a_collapsed_way_is_marked_with_and_without_colour() {
        let shown = report(&sample(), false, Colour::Off);
        assert!(shown.contains("12.3k .12▼▁"));
        assert!(ascii(&shown).contains("12.3k .12v1") && ascii(&shown).is_ascii(), "{}", ascii(&shown));
        assert!(report(&sample(), false, Colour::On).contains("\x1b["));
    }
}
