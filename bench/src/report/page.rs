//! The report as one page of HTML: what it comes to, charts, every figure as a table, and where the
//! figures come from. It asks for nothing else: no network, no script, no font.

mod chart;
mod html;

use std::fmt::Display;

use crate::report::axes::panels;
use crate::report::figures::{mib, micro, share, short};
use crate::report::verdict::{Stand, Standing, sentences, standings};
use crate::report::words::{COLLAPSED, compared, meaning, title, unit};
use crate::report::{Report, Row, best};
use crate::stats::Finding;
use crate::table;
use crate::table::columns::{Column, PageGrid};
use chart::{Look, Measure, Spreads};
use html::Html;

/// Number of cases along an axis whose latencies are drawn.
const SPREADS: usize = 3;

pub fn page(report: &Report) -> String {
    let mut html = Html::default();
    let environment = &report.environment;
    let place = environment.filesystem.as_deref().unwrap_or("a file system");
    let device = environment.device.as_deref().map_or_else(String::new, |device| format!(" on {device}"));
    let name = format!("nowait bench: {place}{device}, {}", environment.date);
    html.constant("<!DOCTYPE html>\n").element("html", &[("lang", &"en")], |html| {
        html.element("head", &[], |html| {
            html.empty("meta", &[("charset", &"utf-8")]);
            // A browser holds the page to what the top of this file says.
            let only = "default-src 'none'; style-src 'unsafe-inline'";
            html.empty("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &only)]);
            html.empty("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
            html.with_text("title", &[], &name);
            html.element("style", &[], |html| {
                html.constant(include_str!("page/style.css"));
            });
        });
        html.element("body", &[], |html| {
            html.element("header", &[], |html| {
                html.with_text("h1", &[], format!("Ways of file I/O on {place}{device}"));
                html.with_text("p", &[("class", &"quiet")], headline(report));
            });
            body(html, report);
        });
    });
    html.constant("\n");
    html.finish()
}

fn headline(report: &Report) -> String {
    let environment = &report.environment;
    let cpu = environment.cpu_model.as_deref().unwrap_or("unknown processor");
    format!("{}, Linux {}, {} × {cpu}", environment.date, environment.kernel, environment.cpus)
}

fn body(html: &mut Html, report: &Report) {
    if let Some(why) = &report.partial {
        html.with_text("p", &[("class", &"partial")], format!("Partial: {why}. What is here is complete in itself."));
    }
    let tables = report.tables();
    html.element("nav", &[("aria-label", &"Sections")], |html| {
        let link = |html: &mut Html, to: &dyn Display, name: &str| {
            html.with_text("a", &[("href", &format!("#{to}"))], name);
        };
        link(html, &"map", "Best ways");
        for table in &tables {
            link(html, &format!("table-{table}"), table);
        }
        link(html, &"notes", "Notes");
        link(html, &"environment", "Environment");
    });
    html.element("main", &[], |html| {
        let sentences = sentences(report);
        if !sentences.is_empty() {
            html.with_text("h2", &[], "What it comes to");
            html.element("ul", &[("class", &"verdict")], |html| {
                for sentence in &sentences {
                    html.with_text("li", &[], sentence);
                }
            });
        }
        command(html, report);
        map(html, report);
        ways(html, report);
        for table in &tables {
            section(html, report, table);
        }
        notes(html, report);
        facts(html, report);
    });
    html.element("footer", &[], |html| {
        html.with_text(
            "p",
            &[],
            "Every way did the same work on the same file in interleaved rounds; its bytes were verified first.",
        );
        html.with_text("p", &[], "Speeds are medians of the rounds. Compare within this page only: a disk drifts.");
    });
}

fn command(html: &mut Html, report: &Report) {
    if report.environment.command.is_empty() {
        return;
    }
    html.with_text("h3", &[], "The command");
    html.with_text("pre", &[], &report.environment.command);
    html.with_text("p", &[("class", &"quiet")], format!("--seed {} repeats the offsets.", report.environment.seed));
}

/// Which way wins each case, and how far the library is off.
fn map(html: &mut Html, report: &Report) {
    let mut standings = standings(report);
    standings.retain(|standing| table::ranks(standing.table));
    html.with_text("h2", &[("id", &"map")], "The best way of each case");
    if standings.is_empty() {
        let why = if report.rows.is_empty() {
            "No case is complete."
        } else {
            "Where the rate is given, speeds rank no way."
        };
        html.with_text("p", &[], why);
        return;
    }
    html.element("div", &[("class", &"wide")], |html| {
        html.element("table", &[("data-table", &"map")], |html| {
            html.with_text(
                "caption",
                &[],
                "nowait's speed as a share of the best way's. ≈: level with it, within 5 %. ?: the rounds do not tell. ▼: below half.",
            );
            header(html, &["case", "best way", "speed", "", "CPU µs each", "nowait", "of the best", "CPU µs each"]);
            for table in report.tables() {
                html.element("tbody", &[], |html| {
                    for standing in standings.iter().filter(|standing| standing.table == table) {
                        html.element("tr", &[], |html| stands(html, standing));
                    }
                });
            }
        });
    });
}

fn stands(html: &mut Html, standing: &Standing<'_>) {
    let best = standing.best;
    html.with_text("th", &[("scope", &"row")], format!("{} {}", standing.table, standing.case));
    html.with_text("td", &[("class", &"left")], &best.way);
    html.with_text("td", &[], short(compared(best)));
    html.with_text("td", &[("class", &"left quiet")], unit(standing.table));
    html.with_text("td", &[], figure(best.cpu_us_per_op.total, 1));
    match standing.ours {
        None => {
            html.with_text("td", &[], "–").with_text("td", &[], "").with_text("td", &[], "");
        }
        Some(Stand { row, share, finding, .. }) => {
            let class = if row.way == best.way { "first" } else { shade(share) };
            let mark = match finding {
                Finding::Level => " ≈",
                Finding::CannotTell => " ?",
                Finding::Behind => "",
            };
            let level = if row.way == best.way { "best".to_owned() } else { marked(share, mark) };
            html.with_text("td", &[], short(compared(row)));
            html.with_text("td", &[("class", &class)], level);
            html.with_text("td", &[], figure(row.cpu_us_per_op.total, 1));
        }
    }
}

fn ways(html: &mut Html, report: &Report) {
    html.with_text("h3", &[], "The ways");
    html.element("dl", &[("class", &"facts quiet")], |html| {
        for way in report.ways().iter().filter(|way| !meaning(report, way).is_empty()) {
            html.with_text("dt", &[], way).with_text("dd", &[], meaning(report, way));
        }
    });
}

/// A share with a mark; without another one, collapses have theirs.
fn marked(ratio: f64, mark: &str) -> String {
    let mark = if mark.is_empty() && ratio < COLLAPSED { " ▼" } else { mark };
    format!("{}{mark}", share(ratio))
}

fn shade(ratio: f64) -> &'static str {
    match ratio {
        ratio if ratio >= 0.95 => "near",
        ratio if ratio >= 0.8 => "good",
        ratio if ratio >= COLLAPSED => "fair",
        _ => "poor",
    }
}

fn section(html: &mut Html, report: &Report, table: &str) {
    let (name, about) = title(table).split_once(": ").unwrap_or((table, ""));
    html.with_text("h2", &[("id", &format!("table-{table}"))], name);
    html.with_text("p", &[("class", &"quiet")], about);
    let looks = chart::looks(&report.ways_of(table));
    speeds(html, report, table);
    charts(html, report, table, &looks);
    if let Some(grid) = table::by_name(table).and_then(|known| known.on_page()) {
        own_grid(html, report, table, grid);
    }
    spreads(html, report, table, &looks);
    figures(html, report, table);
}

/// A line per case, a column per way.
fn speeds(html: &mut Html, report: &Report, table: &str) {
    let ways = report.ways_of(table);
    html.element("div", &[("class", &"wide")], |html| {
        html.element("table", &[("data-table", &format!("{table} speeds"))], |html| {
            html.with_text(
                "caption",
                &[],
                format!("{}, and the share of the line's best. ▼: below half.", unit(table)),
            );
            let names: Vec<&str> = std::iter::once("case").chain(ways.iter().copied()).collect();
            header(html, &names);
            html.element("tbody", &[], |html| {
                for (case, rows) in report.cases(table) {
                    let best = best(&rows);
                    html.element("tr", &[], |html| {
                        html.with_text("th", &[("scope", &"row")], case);
                        for way in &ways {
                            let Some(row) = rows.iter().find(|row| row.way == *way) else {
                                html.with_text("td", &[], "");
                                continue;
                            };
                            let ratio = row.ops_per_s / best;
                            let class = if ratio >= 1.0 { "first" } else { shade(ratio) };
                            html.element("td", &[("class", &class)], |html| {
                                html.text(short(compared(row)));
                                html.with_text("small", &[], marked(ratio, ""));
                            });
                        }
                    });
                }
            });
        });
    });
}

fn charts(html: &mut Html, report: &Report, table: &str, looks: &[(&str, Look)]) {
    let Some((axis, panels)) = panels(report, table) else {
        for (case, rows) in report.cases(table) {
            html.with_text("h3", &[], format!("{table}: {case}"));
            html.element("figure", &[], |html| chart::bars(html, table, &rows, looks));
        }
        return;
    };
    for panel in &panels {
        let name = if panel.name.is_empty() { String::new() } else { format!(": {}", panel.name) };
        html.with_text("h3", &[], format!("{table} by {axis}{name}"));
        html.element("div", &[("class", &"pair")], |html| {
            for measure in Measure::all_of(table) {
                html.element("figure", &[], |html| {
                    html.with_text("figcaption", &[], &measure.name);
                    chart::lines(html, panel, axis, &measure, looks);
                });
            }
        });
    }
}

/// A grid that only this table has.
fn own_grid(html: &mut Html, report: &Report, table: &str, grid: &PageGrid) {
    html.element("div", &[("class", &"wide")], |html| {
        html.element("table", &[("data-table", &grid.name)], |html| {
            html.with_text("caption", &[], grid.caption);
            let names: Vec<&str> =
                std::iter::once("way").chain(grid.columns.iter().map(|column| column.name)).collect();
            header(html, &names);
            bodies(html, report, table, names.len(), |html, row| {
                for column in grid.columns {
                    html.with_text("td", &[], (column.cell)(row).unwrap_or_default());
                }
            });
        });
    });
}

fn spreads(html: &mut Html, report: &Report, table: &str, looks: &[(&str, Look)]) {
    let all: Vec<&Row> = report.rows.iter().filter(|row| row.table == table).collect();
    let Some(spreads) = Spreads::over(&all) else { return };
    let cases = report.cases(table);
    let drawn: Vec<&str> = match panels(report, table) {
        None => cases.iter().map(|(case, _)| *case).collect(),
        Some((_, panels)) => {
            panels.iter().flat_map(|panel| spread_out(&panel.points)).map(|point| point.case).collect()
        }
    };
    let what = table::by_name(table).map_or("Latency", |known| known.latency());
    html.with_text("h3", &[], format!("{table}: {}", what.to_lowercase()));
    let left_out = if drawn.len() < cases.len() { " The other cases are in the table below." } else { "" };
    let text = format!(
        "{what} over all rounds, logarithmic: the filled symbol is the median, the strokes are p99, p99.9 and p99.99, the ring is the \
         longest.{left_out}"
    );
    html.with_text("p", &[("class", &"quiet")], text);
    for (case, rows) in cases.iter().filter(|(case, _)| drawn.contains(case)) {
        html.element("figure", &[], |html| {
            html.with_text("figcaption", &[], case);
            spreads.draw(html, case, rows, looks);
        });
    }
}

/// The first, the last, and what lies between them evenly.
fn spread_out<T>(points: &[T]) -> impl Iterator<Item = &T> {
    let count = points.len();
    let chosen = move |index: usize| count <= SPREADS || (0..SPREADS).any(|i| index == i * (count - 1) / (SPREADS - 1));
    points.iter().enumerate().filter(move |(index, _)| chosen(*index)).map(|(_, point)| point)
}

/// All figures that every table has.
const COLUMNS: [Column; 18] = [
    Column { name: "per s", cell: |row| Some(short(row.ops_per_s)) },
    Column { name: "MiB/s", cell: |row| Some(figure(mib(row.bytes_per_s), 1)) },
    Column {
        name: "slowest–fastest round",
        cell: |row| {
            let (slowest, fastest) = row.spread();
            (!row.rounds.is_empty()).then(|| format!("{slowest:.2}–{fastest:.2}"))
        },
    },
    Column { name: "rounds", cell: |row| Some(row.rounds.len().to_string()) },
    Column { name: "p50 µs", cell: |row| Some(micro(row.latency_ns?.p50)) },
    Column { name: "p99 µs", cell: |row| Some(micro(row.latency_ns?.p99)) },
    Column { name: "p99.9 µs", cell: |row| Some(micro(row.latency_ns?.p999)) },
    Column { name: "p99.99 µs", cell: |row| Some(micro(row.latency_ns?.p9999?)) },
    Column { name: "longest µs", cell: |row| Some(micro(row.latency_ns?.max)) },
    Column { name: "CPU µs", cell: |row| Some(figure(row.cpu_us_per_op.total, 2)) },
    Column { name: "caller", cell: |row| Some(figure(row.cpu_us_per_op.caller, 2)) },
    Column { name: "ring workers", cell: |row| Some(figure(row.cpu_us_per_op.ring_workers?, 2)) },
    Column { name: "pool", cell: |row| Some(figure(row.cpu_us_per_op.pool, 2)) },
    Column { name: "system", cell: |row| Some(figure(row.cpu_us_per_op.system?, 2)) },
    Column { name: "switches", cell: |row| Some(figure(row.context_switches_per_op, 2)) },
    Column { name: "punts", cell: |row| Some(figure(row.punts_per_op?, 2)) },
    Column { name: "inline", cell: |row| Some(figure(row.inline_fraction?, 2)) },
    Column { name: "prepared ms", cell: |row| Some(figure(row.prepared_ms?, 2)) },
];

/// Everything that the rows have: under each case, a line per way.
fn figures(html: &mut Html, report: &Report, table: &str) {
    let rows = || report.rows.iter().filter(|row| row.table == table);
    let own = table::by_name(table).map_or(&[][..], |known| known.figures());
    let told = |column: &&Column| rows().any(|row| (column.cell)(row).is_some());
    let columns: Vec<&Column> = COLUMNS.iter().chain(own).filter(told).collect();
    html.with_text("h3", &[], format!("{table}: all figures"));
    html.with_text(
        "p",
        &[("class", &"quiet")],
        "Rounds as shares of their median; processor time, context switches and requests handed to kernel workers (punts) per operation. \
         Of the process: the caller, the kernel's workers for its rings, and the pool, which is all its other threads. Beside it: system, \
         what the machine's processors did besides (other kernel threads, interrupts, other programs). inline: the share served on the \
         caller's thread without waiting. prepared: what the way made ready before the clock ran. Empty: unknown.",
    );
    html.element("div", &[("class", &"wide")], |html| {
        html.element("table", &[("data-table", &format!("{table} figures"))], |html| {
            let names: Vec<&str> = std::iter::once("way").chain(columns.iter().map(|column| column.name)).collect();
            header(html, &names);
            bodies(html, report, table, names.len(), |html, row| {
                for column in &columns {
                    html.with_text("td", &[], (column.cell)(row).unwrap_or_default());
                }
            });
        });
    });
}

/// The rows of each case, each with its way and the cells that follow.
fn bodies(html: &mut Html, report: &Report, table: &str, columns: usize, cells: impl Fn(&mut Html, &Row)) {
    for (case, rows) in report.cases(table) {
        html.element("tbody", &[], |html| {
            group(html, case, columns);
            for row in rows {
                html.element("tr", &[], |html| {
                    html.with_text("th", &[("scope", &"row")], &row.way);
                    cells(html, row);
                });
            }
        });
    }
}

fn header(html: &mut Html, names: &[&str]) {
    html.element("thead", &[], |html| {
        html.element("tr", &[], |html| {
            for (index, name) in names.iter().enumerate() {
                let class = if index == 0 || *name == "best way" { "left" } else { "" };
                html.with_text("th", &[("scope", &"col"), ("class", &class)], name);
            }
        });
    });
}

/// A line that says of which case those below it are.
fn group(html: &mut Html, case: &str, columns: usize) {
    html.element("tr", &[], |html| {
        html.with_text("th", &[("class", &"case"), ("scope", &"rowgroup"), ("colspan", &columns)], case);
    });
}

fn notes(html: &mut Html, report: &Report) {
    html.with_text("h2", &[("id", &"notes")], "Notes");
    if report.notes.is_empty() {
        html.with_text("p", &[], "No notes.");
    }
    for note in &report.notes {
        html.element("div", &[("class", &"note")], |html| {
            html.element("p", &[], |html| {
                html.with_text("code", &[], note.code.name()).text(" ").text(&note.text);
            });
            html.with_text("p", &[("class", &"quiet")], note.code.meaning());
        });
    }
}

fn facts(html: &mut Html, report: &Report) {
    html.with_text("h2", &[("id", &"environment")], "Environment");
    html.element("dl", &[("class", &"facts")], |html| {
        for (name, value) in report.environment.lines() {
            html.with_text("dt", &[], name).with_text("dd", &[], value);
        }
    });
}

fn figure(value: f64, decimals: usize) -> String {
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::environment::Environment;
    use crate::report::notes::Code;

    #[test]
    fn what_comes_from_outside_is_escaped_wherever_it_stands() {
        let evil = "</style></title><script>alert('1')</script>\"";
        let text = || evil.to_owned();
        let row = |case: String| Row { table: text(), case, way: text(), rounds: vec![1.0], ..Row::default() };
        let environment = Environment {
            filesystem: Some(text()),
            command: text(),
            date: text(),
            kernel: text(),
            cpu_model: Some(text()),
            path: text(),
            device: Some(text()),
            ..Environment::default()
        };
        let rows = vec![row(format!("depth=1 {evil}")), row(format!("depth=2 {evil}"))];
        let ways = [(text(), text())].into();
        let mut report = Report { environment, rows, ways, partial: Some(text()), ..Report::default() };
        report.note(Code::WayLeftOut, evil);
        let page = page(&report);
        assert!(
            !page.contains("<script") && page.matches("</style>").count() == 1 && page.matches("</title>").count() > 1
        );
        assert!(page.contains("&lt;script&gt;"));
    }

    #[test]
    fn a_page_of_nothing_and_of_odd_figures_is_a_page() {
        assert!(page(&Report::default()).contains("No case is complete."));
        let odd = |ops_per_s: f64| Row {
            table: "reads".to_owned(),
            case: "depth=1".to_owned(),
            way: "nowait".to_owned(),
            ops_per_s,
            rounds: vec![ops_per_s],
            ..Row::default()
        };
        for value in [0.0, f64::NAN, f64::INFINITY, 1e300] {
            let page = page(&Report { rows: vec![odd(value)], ..Report::default() });
            let svg = &page[page.find("<svg").unwrap()..page.rfind("</svg>").unwrap()];
            assert!(!svg.contains("=\"NaN") && !svg.contains("=\"inf"), "{value}: {svg}");
        }
    }

    #[test]
    fn the_page_asks_for_nothing_else() {
        let page = page(&Report::default());
        for word in ["src=", "http:", "https:", "url(", "@import", "<link", "<script"] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn the_first_and_the_last_of_many_are_drawn() {
        let points: Vec<usize> = (0..7).collect();
        assert_eq!(spread_out(&points).copied().collect::<Vec<_>>(), [0, 3, 6]);
        assert_eq!(spread_out(&points[..2]).count(), 2);
    }
}
