//! Charts as inline SVG: lines along a number, and the ways of each case side by side. Each way has
//! a hue, a symbol and a dash, shown in a legend, so that charts do not depend on colour alone.

use maud::{Markup, html};

use crate::report::axes::{Panel, Point};
use crate::report::figures::{compared, share, short};
use crate::report::{Report, Row, best};
use crate::table;
use crate::table::columns::Curve;
use crate::ways::{self, CACHE, ON_TOKIO, OURS, PLAIN};

/// Appearance of a way: the number of its hue in the style sheet, its symbol, and the dash of its
/// line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    hue: usize,
    symbol: usize,
    dash: usize,
}

/// Number of hues besides the library's.
const HUES: usize = 8;
const SYMBOLS: usize = 6;
const DASHES: [&str; 4] = ["none", "6 3", "2 3", "8 3 2 3"];

/// Returns the looks of a table's ways. Ways of the library share one hue. Each other known way has
/// the same hue in all tables. A second way with the same hue gets another symbol and dash.
pub(super) fn looks<'a>(ways: &[&'a str]) -> Vec<(&'a str, Look)> {
    let (mut taken, mut unknown) = ([0; HUES + 1], 0);
    let look = |way: &&'a str| {
        let hue = match ways::named(way).and_then(|way| way.hue) {
            _ if way.starts_with(OURS) => 0,
            Some(hue) => 1 + hue,
            None => {
                unknown += 1;
                1 + (unknown - 1) % HUES
            }
        };
        let again = taken[hue];
        taken[hue] += 1;
        (*way, Look { hue, symbol: (hue + again) % SYMBOLS, dash: again % DASHES.len() })
    };
    ways.iter().map(look).collect()
}

impl Look {
    fn class(self) -> String {
        format!("hue{}", self.hue)
    }
}

/// Renders the symbols and names of the ways.
pub(super) fn legend(looks: &[(&str, Look)]) -> Markup {
    html! {
        p.legend {
            @for (way, look) in looks {
                span { svg viewBox="0 0 12 12" aria-hidden="true" { (symbol(*look, (6.0, 6.0), way)) } (way) } " "
            }
        }
    }
}

/// Edges of the plot area of a line chart.
const LEFT: f64 = 52.0;
const RIGHT: f64 = 508.0;
const TOP: f64 = 12.0;
const BASE: f64 = 262.0;

/// A scale from 0 to a round number, or a logarithmic one if values are far apart.
pub(super) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

/// Ratio of values from which a scale is logarithmic.
const FAR_APART: f64 = 40.0;

impl Scale {
    fn of(values: &[f64], logarithmic: bool) -> Self {
        let most = values.iter().copied().fold(0.0, f64::max);
        let least = values.iter().copied().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        if least.is_finite() && (logarithmic || most / least > FAR_APART) {
            return Self::logarithmic(least, most);
        }
        let step = step(most);
        Self { low: 0.0, high: ((most / step).ceil() * step).max(step), logarithmic: false }
    }

    /// Makes a scale of whole powers of ten around these values.
    fn logarithmic(least: f64, most: f64) -> Self {
        let (low, high) = (least.max(1e-3).log10().floor(), most.max(1e-3).log10().ceil());
        Self { low: 10f64.powf(low), high: 10f64.powf(high.max(low + 1.0)), logarithmic: true }
    }

    /// Returns the position of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = if self.logarithmic {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            value / self.high
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            return std::iter::successors(Some(self.low), |tick| Some(tick * 10.0))
                .take_while(|tick| *tick <= self.high * 1.001)
                .collect();
        }
        let step = step(self.high);
        (0..).map(|index| f64::from(index) * step).take_while(|tick| *tick <= self.high * 1.001).collect()
    }
}

/// Returns 1, 2 or 5 times a power of ten, such that there are four to eight steps.
fn step(most: f64) -> f64 {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let power = 10f64.powf(most.log10().floor());
    match most / power {
        times if times < 2.0 => power / 5.0,
        times if times < 4.0 => power / 2.0,
        _ => power,
    }
}

fn svg(width: f64, height: f64, label: &str, inside: &Markup) -> Markup {
    html! { svg viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(label) { (inside) } }
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    html! { line class=(class) x1=(at(from.0)) y1=(at(from.1)) x2=(at(to.0)) y2=(at(to.1)) {} }
}

fn label(class: &str, (x, y): (f64, f64), text: &str) -> Markup {
    html! { text class=(class) x=(at(x)) y=(at(y)) { (text) } }
}

/// Formats a coordinate to a tenth of a pixel.
fn at(value: f64) -> String {
    format!("{:.1}", if value.is_finite() { value } else { 0.0 })
}

/// Renders the way's filled symbol, with `title` as its tooltip.
fn symbol(look: Look, (x, y): (f64, f64), title: &str) -> Markup {
    let path = match look.symbol {
        0 => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        1 => "m-3.5 -3.5h7v7h-7z",
        2 => "m0 -4.5l4.4 7.8h-8.8z",
        3 => "m0 -5l5 5l-5 5l-5 -5z",
        4 => "m0 4.5l4.4 -7.8h-8.8z",
        _ => "m-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    };
    html! { path class={ "symbol " (look.class()) } d={ "M" (at(x)) " " (at(y)) (path) } { title { (title) } } }
}

/// Returns the curves that the table declares, or else speed, processor time and latency.
pub(super) fn measures(table: &str) -> Vec<Curve> {
    let known = table::known(table);
    if !known.curves.is_empty() {
        return known.curves.to_vec();
    }
    let processor = |row: &Row| Some(row.cpu_us_per_op.total);
    vec![
        Curve { name: known.unit, value: |row| Some(compared(row)), logarithmic: false },
        Curve { name: "CPU µs each, whole process", value: processor, logarithmic: false },
        Curve { name: known.latency, value: |row| Some(row.latency_ns?.p99 as f64 / 1e3), logarithmic: true },
    ]
}

/// Renders a line per way along the axis of a panel; nothing if no row has the measure.
pub(super) fn lines(panel: &Panel<'_>, axis: &str, measure: &Curve, looks: &[(&str, Look)]) -> Markup {
    let rows = panel.points.iter().flat_map(|point| &point.rows);
    let values: Vec<f64> = rows.filter_map(|row| (measure.value)(row)).collect();
    let (Some(first), Some(last), false) = (panel.points.first(), panel.points.last(), values.is_empty()) else {
        return html! {};
    };
    let scale = Scale::of(&values, measure.logarithmic);
    let (first, width) = (first.value.log2(), (last.value / first.value).log2().max(f64::EPSILON));
    let x = |point: &Point<'_>| LEFT + (point.value.log2() - first) / width * (RIGHT - LEFT);
    let y = |value: f64| BASE - scale.place(value) * (BASE - TOP);
    let curve = |way: &str| {
        let of_way = |point: &Point<'_>| (measure.value)(point.rows.iter().find(|row| row.way == way)?);
        let place = |point| Some((x(point), of_way(point)?, point.case));
        panel.points.iter().filter_map(place).collect::<Vec<_>>()
    };
    let inside = html! {
        @for tick in scale.ticks() {
            (line("grid", (LEFT, y(tick)), (RIGHT, y(tick))))
            (label("tick end", (LEFT - 6.0, y(tick) + 4.0), &number(tick)))
        }
        @for point in &panel.points {
            (line("grid", (x(point), TOP), (x(point), BASE)))
            (label("tick middle", (x(point), BASE + 16.0), point.label))
        }
        (label("tick middle", ((LEFT + RIGHT) / 2.0, BASE + 34.0), axis))
        // The library's line is drawn last, on top.
        @for (way, look) in looks.iter().rev() {
            @let points = curve(way);
            @let path = points.iter().map(|(x, value, _)| format!("{},{}", at(*x), at(y(*value)))).collect::<Vec<_>>();
            polyline class={ "line " (look.class()) } stroke-dasharray=(DASHES[look.dash]) points=(path.join(" ")) {}
            @for (x, value, case) in points {
                (symbol(*look, (x, y(value)), &format!("{way}, {case}: {} {}", short(value), measure.name)))
            }
        }
    };
    let kind = if scale.logarithmic { " (logarithmic)" } else { "" };
    let described = format!("{}{kind} by {axis}, a line per way; the figures are in the tables", measure.name);
    html! { figure { figcaption { (measure.name) (kind) } (svg(RIGHT + 16.0, BASE + 44.0, &described, &inside)) } }
}

/// Returns whether programs choose this way today, as in the legend.
fn is_known(way: &str) -> bool {
    PLAIN.contains(&way) || ["threads", "thread-batch", "ring", "tokio", OURS, ON_TOKIO, CACHE].contains(&way)
}

/// Renders a line for each case of the tables that rank ways: the ratios to the best, of the ways
/// that programs choose between.
pub(super) fn overview(report: &Report) -> Markup {
    const WIDTH: f64 = 900.0;
    const ROW: f64 = 18.0;
    let ways: Vec<&str> = report.ways().into_iter().filter(|way| is_known(way)).collect();
    let looks = looks(&ways);
    let ranked = report.tables().into_iter().filter(|table| table::ranks(table));
    let cases: Vec<(String, Vec<&Row>)> = ranked
        .flat_map(|table| report.cases(table).into_iter().map(move |(case, rows)| (format!("{table} {case}"), rows)))
        .collect();
    let ratio = |row: &Row, rows: &[&Row]| (row.ops_per_s / best(rows)).clamp(0.01, 1.0);
    let least = cases.iter().flat_map(|(_, rows)| rows.iter().map(|row| ratio(row, rows))).fold(0.5, f64::min);
    let scale = Scale::logarithmic(least, 1.0);
    let letters = cases.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    // A letter is at most 7 units wide.
    let (left, bottom) = (letters as f64 * 7.0 + 20.0, 8.0 + ROW * cases.len() as f64);
    let x = |value: f64| left + scale.place(value) * (WIDTH - left - 20.0);
    let inside = html! {
        @for value in scale.ticks() {
            (line("grid", (x(value), 4.0), (x(value), bottom)))
            (label("tick middle", (x(value), bottom + 15.0), &format!("{} %", trimmed(value * 100.0))))
        }
        @for (index, (name, rows)) in cases.iter().enumerate() {
            @let y = 8.0 + ROW * (index as f64 + 0.5);
            (label("end", (left - 14.0, y + 4.0), name))
            (line("leader", (left, y), (x(1.0), y)))
            @for (way, look) in &looks {
                @if let Some(row) = rows.iter().find(|row| row.way == *way) {
                    @let of_best = share(ratio(row, rows));
                    @let title = format!("{way}, {name}: {}, {of_best} of the best", short(compared(row)));
                    (symbol(*look, (x(ratio(row, rows)), y), &title))
                }
            }
        }
    };
    let described = "The speed of each way as a share of the best in each case; the figures are in the tables";
    html! {
        figure {
            figcaption { "Speed as a share of the best way's, logarithmic. At the right edge: the best." }
            (legend(&looks))
            div.wide { (svg(WIDTH, bottom + 22.0, described, &inside)) }
        }
    }
}

/// Formats a number at a tick of an axis.
fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", trimmed(v / 1e6)),
        v if v >= 1e3 => format!("{}k", trimmed(v / 1e3)),
        v => trimmed(v),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::in_order;
    use std::collections::HashSet;

    fn hue_of(way: &str) -> Option<usize> {
        ways::named(way)?.hue
    }

    #[test]
    fn every_way_of_a_table_looks_different_and_the_same_in_all() {
        for table in crate::table::TABLES {
            let ways = in_order(table.ways(&crate::measure::options::Options::new(false, 1)).into_iter());
            let looks = looks(&ways);
            for (index, (way, look)) in looks.iter().enumerate() {
                assert!(looks[..index].iter().all(|(_, other)| other != look), "{} {way}", table.name);
                assert_eq!(look.hue, hue_of(way).map_or(0, |hue| hue + 1), "{} {way}", table.name);
            }
            let others = ways.iter().filter_map(|way| hue_of(way));
            let hues: HashSet<usize> = others.clone().collect();
            assert_eq!(hues.len(), others.count().min(HUES), "{}: each has a hue of its own", table.name);
        }
    }

    #[test]
    fn ways_that_nobody_knows_look_different_from_those_that_are_known() {
        for count in [6, 20] {
            let others: Vec<String> = (0..count).map(|number| format!("other-{number}")).collect();
            let ways: Vec<&str> = others.iter().map(String::as_str).chain(["pread", "ring", "nowait"]).collect();
            let looks = looks(&ways);
            for (index, (way, look)) in looks.iter().enumerate() {
                assert!(looks[..index].iter().all(|(_, other)| other != look), "{way}: {look:?}");
            }
            let hue = |name| looks.iter().find(|(way, _)| *way == name).unwrap().1.hue;
            assert_eq!([hue("pread"), hue("ring"), hue("nowait")], [1, 6, 0]);
        }
    }

    #[test]
    fn ticks_are_round_and_span_the_values() {
        let scale = Scale::of(&[3.0, 79_100.0, 30_000.0, 20_000.0], false);
        assert!(scale.logarithmic);
        assert_eq!(scale.ticks(), [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        let scale = Scale::of(&[79_100.0, 30_000.0], false);
        assert_eq!((scale.ticks().len(), scale.high), (9, 80_000.0));
        assert_eq!([0.0, 0.2, 25_000.0, 1e6].map(number), ["0", "0.2", "25k", "1M"]);
    }

    #[test]
    fn nothing_and_zero_have_a_scale_too() {
        for scale in [Scale::of(&[], true), Scale::of(&[0.0], false)] {
            assert!(scale.place(0.0) == 0.0 && scale.ticks().len() > 1);
        }
    }
}
