//! Charts as inline SVG: lines along a number, ways of each case beside each other, and spreads of
//! latencies. A way has a hue, a symbol and its name beside them, so that no chart is read by colour alone.

use maud::{Markup, html};

use crate::report::axes::{Panel, Point};
use crate::report::figures::{share, short};
use crate::report::words::{compared, unit};
use crate::report::{Latency, Report, Row, best};
use crate::table;
use crate::table::columns::Curve;
use crate::ways::{self, ON_TOKIO, OURS, PLAIN};

/// Appearance of a way: the hue that the style sheet has under this number, the symbol, the dash of
/// its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    hue: usize,
    symbol: usize,
    dash: usize,
}

/// Besides the library's own.
const HUES: usize = 8;
const SYMBOLS: usize = 6;
const DASHES: [&str; 4] = ["none", "6 3", "2 3", "8 3 2 3"];

/// The looks of a table's ways: the library's share one hue, and each other way has the same in all
/// tables, as long as a table has no more ways than there are hues.
pub(super) fn looks<'a>(ways: &[&'a str]) -> Vec<(&'a str, Look)> {
    let (mut taken, mut claimed, mut ours) = ([0; HUES], [0; HUES], 0);
    ways.iter().filter_map(|way| wanted(way)).for_each(|hue| claimed[hue] += 1);
    let look = |way: &&'a str| {
        if way.starts_with("nowait") {
            ours += 1;
            return (*way, Look { hue: 0, symbol: (ours - 1) % SYMBOLS, dash: (ours - 1) % DASHES.len() });
        }
        // A way that nobody knows leaves the hues of those that are known to them.
        let hue = wanted(way).unwrap_or_else(|| {
            let hue = (0..HUES).min_by_key(|&hue| claimed[hue]).unwrap_or(0);
            claimed[hue] += 1;
            hue
        });
        // Of the ways with one hue, the second is dashed, and so on.
        let again = taken[hue];
        taken[hue] += 1;
        (*way, Look { hue: hue + 1, symbol: (hue + 1 + again) % SYMBOLS, dash: again % DASHES.len() })
    };
    ways.iter().map(look).collect()
}

fn wanted(way: &str) -> Option<usize> {
    ways::named(way)?.hue
}

impl Look {
    fn class(self) -> String {
        format!("hue{}", self.hue)
    }
}

fn look_of(looks: &[(&str, Look)], way: &str) -> Look {
    looks.iter().find(|(name, _)| *name == way).map_or(Look { hue: 1, symbol: 0, dash: 0 }, |(_, look)| *look)
}

/// Measures of a chart of lines: its width without names, and its heights.
const LEFT: f64 = 52.0;
const RIGHT: f64 = 428.0;
const TOP: f64 = 12.0;
const PLOT: f64 = 250.0;
const BOTTOM: f64 = 44.0;
/// A line of text, and the width of its letters at most.
const LINE: f64 = 14.0;
const LETTER: f64 = 7.0;
/// The width of a chart whose rows have names at the left.
const WIDTH: f64 = 900.0;

/// From 0 to a round number, or, where values are far apart, along powers of ten.
pub(super) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

/// Values that are further apart are drawn logarithmically.
const FAR_APART: f64 = 40.0;

impl Scale {
    fn of(values: impl Iterator<Item = f64> + Clone, logarithmic: bool) -> Self {
        let most = values.clone().fold(0.0, f64::max);
        let least = values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        if least.is_finite() && (logarithmic || most / least > FAR_APART) {
            return Self::logarithmic(least, most);
        }
        let step = step(most);
        Self { low: 0.0, high: ((most / step).ceil() * step).max(step), logarithmic: false }
    }

    /// Around all latencies of these; `None` if there are none.
    pub(super) fn of_latencies(rows: &[&Row]) -> Option<Self> {
        let latencies = || rows.iter().filter_map(|row| row.latency_ns);
        let least = latencies().map(|latency| latency.p50).min()?;
        let most = latencies().map(|latency| latency.max).max()?;
        Some(Self::logarithmic(least.max(100) as f64, most.max(1000) as f64))
    }

    /// Whole powers of ten around these.
    fn logarithmic(least: f64, most: f64) -> Self {
        let (low, high) = (least.max(1e-3).log10().floor(), most.max(1e-3).log10().ceil());
        Self { low: 10f64.powf(low), high: 10f64.powf(high.max(low + 1.0)), logarithmic: true }
    }

    /// From 0 to 1.
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

/// 1, 2 or 5 times a power of ten, so that there are four to eight of them.
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

/// A tenth of a pixel is enough. What is no number has no place.
fn at(value: f64) -> String {
    format!("{:.1}", if value.is_finite() { value } else { 0.0 })
}

/// The way's symbol, filled; `title` shows while the pointer is on it.
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

/// Those that the table draws of its own, else speed and processor time.
pub(super) fn measures(table: &str) -> Vec<Curve> {
    match table::by_name(table).map_or(&[][..], |known| known.curves) {
        [] => vec![
            Curve { name: unit(table), value: |row| Some(compared(row)), logarithmic: false },
            Curve {
                name: "CPU µs each, whole process",
                value: |row| Some(row.cpu_us_per_op.total),
                logarithmic: false,
            },
        ],
        own => own.to_vec(),
    }
}

/// A line per way along the axis of a panel.
pub(super) fn lines<'a>(panel: &Panel<'_>, axis: &str, measure: &Curve, looks: &[(&'a str, Look)]) -> Markup {
    let values = panel.points.iter().flat_map(|point| &point.rows).filter_map(|row| (measure.value)(row));
    let scale = Scale::of(values.collect::<Vec<_>>().into_iter(), measure.logarithmic);
    let base = TOP + PLOT;
    let place = |point: Option<&Point<'_>>| point.map_or(0.0, |point| point.value.log2());
    let (first, last) = (place(panel.points.first()), place(panel.points.last()));
    let x = |point: &Point<'_>| LEFT + (point.value.log2() - first) / (last - first).max(f64::EPSILON) * (RIGHT - LEFT);
    let y = |value: f64| base - scale.place(value) * PLOT;
    // The library's last, on top.
    let curve = |(way, look): &(&'a str, Look)| {
        let of_way = |point: &Point<'_>| (measure.value)(point.rows.iter().find(|row| row.way == *way)?);
        let at = |point| Some((x(point), of_way(point)?, point.case));
        (*way, *look, panel.points.iter().filter_map(at).collect::<Vec<_>>())
    };
    let drawn: Vec<_> = looks.iter().rev().map(curve).collect();
    let end = |(way, look, points): &(&'a str, Look, Vec<(f64, f64, &str)>)| {
        points.last().map(|(x, value, _)| End { x: *x, y: y(*value), way, look: *look })
    };
    let ends = apart(drawn.iter().filter_map(end).collect());
    let inside = html! {
        @for tick in scale.ticks() {
            (line("grid", (LEFT, y(tick)), (RIGHT, y(tick))))
            (label("tick end", (LEFT - 6.0, y(tick) + 4.0), &number(tick)))
        }
        @for point in &panel.points {
            (line("grid", (x(point), TOP), (x(point), base)))
            (label("tick middle", (x(point), base + 16.0), point.label))
        }
        (label("tick middle", ((LEFT + RIGHT) / 2.0, base + 34.0), axis))
        @for (way, look, points) in &drawn {
            @let path = points.iter().map(|(x, value, _)| format!("{},{}", at(*x), at(y(*value)))).collect::<Vec<_>>();
            polyline class={ "line " (look.class()) } stroke-dasharray=(DASHES[look.dash]) points=(path.join(" ")) {}
            @for (x, value, case) in points {
                (symbol(*look, (*x, y(*value)), &format!("{way}, {case}: {} {}", short(*value), measure.name)))
            }
        }
        @for (place, End { x, y, way, look }) in &ends {
            (line("leader", (x + 6.0, *y), (RIGHT + 12.0, *place)))
            (symbol(*look, (RIGHT + 18.0, *place), way))
            (label("name", (RIGHT + 27.0, place + 4.0), way))
        }
    };
    let kind = if scale.logarithmic { " (logarithmic)" } else { "" };
    let described = format!("{}{kind} by {axis}, a line per way; the figures are in the tables", measure.name);
    let names = looks.iter().map(|(way, _)| way.chars().count()).max().unwrap_or(0) as f64 * LETTER;
    svg(RIGHT + 32.0 + names, TOP + PLOT + BOTTOM, &described, &inside)
}

/// The end of a way's line.
#[derive(Debug, Clone, Copy)]
struct End<'a> {
    x: f64,
    y: f64,
    way: &'a str,
    look: Look,
}

/// Ends of lines from above to below, and where their names go, of which none lies on another.
fn apart(mut ends: Vec<End<'_>>) -> Vec<(f64, End<'_>)> {
    ends.sort_by(|a, b| a.y.total_cmp(&b.y));
    let mut places: Vec<f64> = Vec::new();
    for end in &ends {
        places.push(places.last().map_or(end.y, |above| end.y.max(above + LINE)));
    }
    // Push up what was pushed below the plot.
    let mut lowest = TOP + PLOT + LINE;
    for place in places.iter_mut().rev() {
        *place = place.min(lowest);
        lowest = *place - LINE;
    }
    places.into_iter().zip(ends).collect()
}

/// Rows below each other, each with its name, along one scale; `row` draws one at its height.
fn rows(
    described: &str,
    scale: &Scale,
    tick: fn(f64) -> String,
    names: &[String],
    row: impl Fn(usize, &dyn Fn(f64) -> f64, f64) -> Markup,
) -> Markup {
    const ROW: f64 = 18.0;
    let left = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) as f64 * LETTER + 20.0;
    let bottom = 8.0 + ROW * names.len() as f64;
    let x = |value: f64| left + scale.place(value) * (WIDTH - left - 20.0);
    let inside = html! {
        @for value in scale.ticks() {
            (line("grid", (x(value), 4.0), (x(value), bottom)))
            (label("tick middle", (x(value), bottom + 15.0), &tick(value)))
        }
        @for (index, name) in names.iter().enumerate() {
            @let y = 8.0 + ROW * (index as f64 + 0.5);
            (label("name end", (left - 14.0, y + 4.0), name))
            (row(index, &x, y))
        }
    };
    svg(WIDTH, bottom + 22.0, described, &inside)
}

/// The ways that programs choose between, in the order of the legend.
fn is_known(way: &str) -> bool {
    PLAIN.contains(&way) || ["threads", "thread-batch", "ring", "tokio", OURS, ON_TOKIO].contains(&way)
}

/// Each case of the tables that rank ways: how far those that programs choose between are off the best.
pub(super) fn overview(report: &Report) -> Markup {
    let ways: Vec<&str> = report.ways().into_iter().filter(|way| is_known(way)).collect();
    let looks = looks(&ways);
    let ranked = report.tables().into_iter().filter(|table| table::ranks(table));
    let cases: Vec<(String, Vec<&Row>)> = ranked
        .flat_map(|table| report.cases(table).into_iter().map(move |(case, rows)| (format!("{table} {case}"), rows)))
        .collect();
    let ratio = |row: &Row, rows: &[&Row]| (row.ops_per_s / best(rows)).clamp(0.01, 1.0);
    let least = cases.iter().flat_map(|(_, rows)| rows.iter().map(|row| ratio(row, rows))).fold(0.5, f64::min);
    let names: Vec<String> = cases.iter().map(|(name, _)| name.clone()).collect();
    let drawn = rows(
        "The speed of each way as a share of the best in each case; the figures are in the tables",
        &Scale::logarithmic(least, 1.0),
        |value| format!("{} %", trimmed(value * 100.0)),
        &names,
        |index, x, y| {
            let (name, rows) = &cases[index];
            html! {
                (line("leader", (x(0.0), y), (x(1.0), y)))
                @for (way, look) in looks.iter() {
                    @if let Some(row) = rows.iter().find(|row| row.way == *way) {
                        @let title = format!("{way}, {name}: {}, {} of the best", short(compared(row)), share(ratio(row, rows)));
                        (symbol(*look, (x(ratio(row, rows)), y), &title))
                    }
                }
            }
        },
    );
    html! {
        figure {
            figcaption { "Speed as a share of the best way's, logarithmic. At the right edge: the best." }
            p.legend {
                @for (way, look) in &looks {
                    span { svg viewBox="0 0 12 12" aria-hidden="true" { (symbol(*look, (6.0, 6.0), way)) } (way) } " "
                }
            }
            (drawn)
        }
    }
}

/// A line per way from the median to the worst, thinner and thinner.
pub(super) fn spread(scale: &Scale, case: &str, all: &[&Row], looks: &[(&str, Look)]) -> Markup {
    let timed: Vec<(&Row, Latency)> = all.iter().filter_map(|row| Some((*row, row.latency_ns?))).collect();
    let names: Vec<String> = timed.iter().map(|(row, _)| row.way.clone()).collect();
    let described = format!("{case}: latencies, a line per way; the figures are in the tables");
    rows(&described, scale, duration, &names, |index, x, y| {
        let (row, latency) = &timed[index];
        let look = look_of(looks, &row.way);
        let class = |name: &str| format!("{name} {}", look.class());
        let x = |nanoseconds: u64| x(nanoseconds as f64);
        let title = format!("{}: {}", row.way, told(latency));
        html! {
            (line(&class("spread thick"), (x(latency.p50), y), (x(latency.p99), y)))
            (line(&class("spread"), (x(latency.p99), y), (x(latency.p999), y)))
            (line(&class("spread thin"), (x(latency.p999), y), (x(latency.max), y)))
            @for quantile in [latency.p99, latency.p999, latency.p9999.unwrap_or(latency.p999)] {
                (line(&class("mark"), (x(quantile), y - 5.0), (x(quantile), y + 5.0)))
            }
            circle class=(class("worst")) cx=(at(x(latency.max))) cy=(at(y)) r="3.5" { title { (title) } }
            (symbol(look, (x(latency.p50), y), &title))
        }
    })
}

fn told(latency: &Latency) -> String {
    let p9999 = latency.p9999.map_or_else(String::new, |value| format!(", p99.99 {}", duration(value as f64)));
    let [p50, p99, p999, max] =
        [latency.p50, latency.p99, latency.p999, latency.max].map(|value| duration(value as f64));
    format!("p50 {p50}, p99 {p99}, p99.9 {p999}{p9999}, longest {max}")
}

fn duration(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    if value < 9.95 && value.fract() > 0.04 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// At a tick of an axis.
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

    #[test]
    fn every_way_of_a_table_looks_different_and_the_same_in_all() {
        for table in crate::table::TABLES {
            let ways = in_order(table.ways(&crate::measure::options::Options::new(false, 1)).into_iter());
            let looks = looks(&ways);
            for (index, (way, look)) in looks.iter().enumerate() {
                assert!(looks[..index].iter().all(|(_, other)| other != look), "{} {way}", table.name);
                assert_eq!(look.hue, wanted(way).map_or(0, |hue| hue + 1), "{} {way}", table.name);
            }
            let others = ways.iter().filter_map(|way| wanted(way));
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
                assert!(count > 6 || look.dash == 0, "{way}: {look:?}");
            }
            assert_eq!([look_of(&looks, "pread").hue, look_of(&looks, "ring").hue], [1, 6]);
        }
    }

    #[test]
    fn ticks_are_round_and_span_the_values() {
        let scale = Scale::of([3.0, 79_100.0, 30_000.0, 20_000.0].into_iter(), false);
        assert!(scale.logarithmic);
        assert_eq!(scale.ticks(), [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        let scale = Scale::of([79_100.0, 30_000.0].into_iter(), false);
        assert_eq!((scale.ticks().len(), scale.high), (9, 80_000.0));
        assert_eq!([0.0, 0.2, 25_000.0, 1e6].map(number), ["0", "0.2", "25k", "1M"]);
    }

    #[test]
    fn nothing_and_zero_have_a_scale_too() {
        for scale in [Scale::of([].into_iter(), true), Scale::of([0.0].into_iter(), false)] {
            assert!(scale.place(0.0) == 0.0 && scale.ticks().len() > 1);
        }
        assert!(Scale::of_latencies(&[]).is_none());
    }

    #[test]
    fn names_do_not_lie_on_each_other() {
        let look = Look { hue: 0, symbol: 0, dash: 0 };
        let ends = [100.0, 101.0, 102.0, 261.0, 262.0].map(|y| End { x: 0.0, y, way: "way", look }).to_vec();
        let places: Vec<f64> = apart(ends).into_iter().map(|(place, _)| place).collect();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= LINE - 0.001), "{places:?}");
        assert!(places.iter().all(|place| *place <= TOP + PLOT + LINE), "{places:?}");
    }

    #[test]
    fn durations() {
        assert_eq!(
            [100.0, 1000.0, 1500.0, 71_167.0, 2e6, 1.2e9].map(duration),
            ["100 ns", "1 µs", "1.5 µs", "71 µs", "2 ms", "1.2 s"]
        );
    }
}
