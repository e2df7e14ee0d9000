//! The report as one HTML page: the best way of each case, the verdict, charts, tables of all
//! figures, and the environment. The page is self-contained: it needs no network, script or font.

mod chart;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::report::axes::panels;
use crate::report::figures::{
    COLLAPSED, COLUMNS, MEANINGS, best_compared, compared, decimals, known, meaning, share, short, title, unit,
};
use crate::report::verdict::{Stand, quickest, sentences, stand};
use crate::report::{Report, Row};
use crate::stats::Finding;
use crate::table;
use crate::table::columns::Column;
use crate::ways::{CACHE, OURS};

pub fn page(report: &Report) -> String {
    let environment = &report.environment;
    let place = environment.filesystem.as_deref().unwrap_or("a file system");
    let device = environment.device.as_deref().map_or_else(String::new, |device| format!(" on {device}"));
    let cpu = environment.cpu_model.as_deref().unwrap_or("unknown processor");
    let tables = report.tables();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                // Enforces in the browser that the page is self-contained.
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "nowait bench: " (place) (device) ", " (environment.date) }
                style { (PreEscaped(include_str!("page/style.css"))) }
            }
            body {
                header {
                    h1 { "Ways of file I/O on " (place) (device) }
                    p.quiet { (environment.date) ", Linux " (environment.kernel) ", " (environment.cpus) " × " (cpu) }
                    @if let Some(warning) = environment.load.warning() { p.warning { (warning) } }
                    @if let Some(why) = &report.partial {
                        p.warning { "Partial: " (why) ". The rows below are complete; missing rows were not measured." }
                    }
                }
                nav aria-label="Sections" {
                    a href="#map" { "Best ways" }
                    @for table in &tables { a href={ "#table-" (table) } { (table) } }
                    a href="#notes" { "Notes" }
                    a href="#environment" { "Environment" }
                }
                main {
                    (map(report))
                    (verdict(report))
                    @for table in &tables { (section(report, table)) }
                    (ways(report))
                    (origin(report))
                }
                footer {
                    p { "All ways did the same work on the same file, in interleaved rounds. The bytes of each way were verified first." }
                    p { "Speeds are medians of the rounds. Compare only within this page: the speed of a disk drifts." }
                }
            }
        }
    };
    page.into_string() + "\n"
}

/// Renders a table whose first column contains names.
fn grid(name: &str, caption: &str, header: &[&str], bodies: &Markup) -> Markup {
    html! {
        p.quiet { (caption) }
        div.wide.many[header.len() > 11] {
            table data-table=(name) {
                thead { tr {
                    @for (index, name) in header.iter().enumerate() {
                        th scope="col" class=[(index == 0 || *name == "best way").then_some("left")] { (name) }
                    }
                } }
                (bodies)
            }
        }
    }
}

/// Renders the best way of each case, and the library relative to it.
fn map(report: &Report) -> Markup {
    let ranked: Vec<&str> = report.tables().into_iter().filter(|table| table::ranks(table)).collect();
    let caption = "The speed of nowait, or of its page cache, relative to the best way. ≈: equally fast, within 5 %. \
        ?: uncertain. ▼: below half.";
    let header = ["case", "best way", "speed", "", "CPU µs each", "nowait", "of the best", "CPU µs each"];
    let bodies = html! {
        @for table in &ranked { tbody { @for (_, rows) in report.cases(table) { (stands(report, &rows)) } } }
    };
    html! {
        h2 #map { "The best way of each case" }
        @if !ranked.is_empty() {
            (chart::overview(report))
            (grid("map", caption, &header, &bodies))
        } @else if report.rows.is_empty() {
            p { "No case is complete." }
        } @else {
            p { "Ways are not ranked by speed where the rate is given." }
        }
    }
}

fn stands(report: &Report, rows: &[&Row]) -> Markup {
    let Some(best) = quickest(rows.iter().copied()) else { return html! {} };
    let cpu = |row: &Row| decimals(row.cpu_us_per_op.total, 1);
    html! {
        tr {
            th scope="row" { (best.table) " " (best.case) }
            td.left { (best.way) }
            td { (short(compared(best))) }
            td.left.quiet { (unit(&best.table)) }
            td { (cpu(best)) }
            @match stand(report, rows, CACHE).or_else(|| stand(report, rows, OURS)) {
                None => { td { "–" } td; td; }
                Some(Stand { row, .. }) if row.way == best.way => {
                    td { (short(compared(row))) } td.first { "best" } td { (cpu(row)) }
                }
                Some(Stand { row, share, finding, .. }) => {
                    td { (short(compared(row))) }
                    td class=(shade(share)) { (marked(share, finding)) }
                    td { (cpu(row)) }
                }
            }
        }
    }
}

fn verdict(report: &Report) -> Markup {
    let sentences = sentences(report);
    html! {
        @if !sentences.is_empty() {
            h2 { "Verdict" }
            ul.verdict { @for sentence in &sentences { li { (sentence) } } }
        }
    }
}

fn ways(report: &Report) -> Markup {
    html! {
        h2 #ways { "The ways" }
        dl.facts.quiet {
            @for way in report.ways().iter().filter(|way| !meaning(report, way).is_empty()) {
                dt { (way) } dd { (meaning(report, way)) }
            }
        }
    }
}

/// Formats a ratio with a mark. A ratio below half is marked only if the rounds are certain.
fn marked(ratio: f64, finding: Finding) -> String {
    let mark = match finding {
        Finding::Level => " ≈",
        Finding::CannotTell => " ?",
        Finding::Behind if ratio < COLLAPSED => " ▼",
        Finding::Behind => "",
    };
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

fn section(report: &Report, table: &str) -> Markup {
    let (name, about) = title(table).split_once(": ").unwrap_or((table, ""));
    let looks = chart::looks(&report.ways_of(table));
    html! {
        h2 id={ "table-" (table) } { (name) }
        p.quiet { (about) }
        (speeds(report, table))
        @if let Some((axis, panels)) = panels(report, table) {
            (chart::legend(&looks))
            @for panel in &panels {
                h3 { (table) " by " (axis) @if !panel.name.is_empty() { ": " (panel.name) } }
                div.pair {
                    @for measure in chart::measures(table) { (chart::lines(panel, axis, &measure, &looks)) }
                }
            }
        }
        @for own in table::known(table).grids {
            (figures(report, table, &format!("{table} {}", own.name), own.name, own.columns.iter()))
        }
        h3 { (table) ": all figures" }
        (figures(report, table, &format!("{table} figures"), MEANINGS, COLUMNS.iter()))
    }
}

/// Renders a line per case and a column per way.
fn speeds(report: &Report, table: &str) -> Markup {
    let ways = report.ways_of(table);
    let header: Vec<&str> = std::iter::once("case").chain(ways.iter().copied()).collect();
    let cell = |row: &Row, best: f64| {
        let ratio = compared(row) / best;
        let class = if ratio >= 1.0 { "first" } else { shade(ratio) };
        html! { td class=(class) { (short(compared(row))) small { (marked(ratio, Finding::Behind)) } } }
    };
    let bodies = html! {
        tbody {
            @for (case, rows) in report.cases(table) {
                tr {
                    th scope="row" { (case) }
                    @for way in &ways {
                        @match rows.iter().find(|row| row.way == *way) {
                            Some(row) => (cell(row, best_compared(&rows))),
                            None => td;,
                        }
                    }
                }
            }
        }
    };
    let caption = format!("{}, and the ratio to the best of the line. ▼: below half.", unit(table));
    grid(&format!("{table} speeds"), &caption, &header, &bodies)
}

/// Renders a line per way under each case, with the columns that have a value in any row.
fn figures<'a>(
    report: &Report,
    table: &str,
    name: &str,
    caption: &str,
    columns: impl Iterator<Item = &'a Column>,
) -> Markup {
    let columns = known(report, table, columns);
    let header: Vec<&str> = std::iter::once("way").chain(columns.iter().map(|column| column.name)).collect();
    let bodies = html! {
        @for (case, rows) in report.cases(table) {
            tbody {
                tr { th.case scope="rowgroup" colspan=(header.len()) { (case) } }
                @for row in rows {
                    tr {
                        th scope="row" { (row.way) }
                        @for column in &columns { td { ((column.cell)(row).unwrap_or_default()) } }
                    }
                }
            }
        }
    };
    grid(name, caption, &header, &bodies)
}

fn origin(report: &Report) -> Markup {
    let environment = &report.environment;
    html! {
        h2 #notes { "Notes" }
        @if report.notes.is_empty() { p { "No notes." } }
        @for note in &report.notes {
            div.note {
                p { code { (note.code.name()) } " " (note.text) }
                p.quiet { (note.code.meaning()) }
            }
        }
        h2 #environment { "Environment" }
        @if !environment.command.is_empty() {
            pre { (environment.command) }
            p.quiet { "--seed " (environment.seed) " repeats the offsets." }
        }
        dl.facts { @for (name, value) in environment.lines() { dt { (name) } dd { (value) } } }
    }
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
}
