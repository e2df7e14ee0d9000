//! Charts as inline SVG: lines along a number, bars, and spreads of latencies on a logarithmic
//! scale. A way has a hue, a symbol and its name beside them, so that no chart is read by colour
//! alone.

use super::html::Html;
use crate::report::axes::Panel;
use crate::report::figures::short;
use crate::report::words::{compared, unit};
use crate::report::{Latency, Row};
use crate::table;
use crate::table::columns::Curve;
use crate::ways;

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

const WIDTH: f64 = 560.0;
const LEFT: f64 = 52.0;
/// Width of the margin with the names of ways.
const RIGHT: f64 = 132.0;
const TOP: f64 = 12.0;
const PLOT: f64 = 250.0;
const BOTTOM: f64 = 44.0;
/// A line of text.
const LINE: f64 = 14.0;

/// From 0 to a round number, or, where values are far apart, along powers of ten.
struct Scale {
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

fn svg(html: &mut Html, width: f64, height: f64, label: &str, inside: impl FnOnce(&mut Html)) {
    let view = format!("0 0 {width} {height}");
    let attributes: &[(&'static str, &dyn std::fmt::Display)] =
        &[("viewBox", &view), ("role", &"img"), ("aria-label", &label)];
    html.element("svg", attributes, inside);
}

fn line(html: &mut Html, class: &str, from: (f64, f64), to: (f64, f64)) {
    html.empty(
        "line",
        &[("class", &class), ("x1", &at(from.0)), ("y1", &at(from.1)), ("x2", &at(to.0)), ("y2", &at(to.1))],
    );
}

fn label(html: &mut Html, class: &str, (x, y): (f64, f64), text: &str) {
    html.with_text("text", &[("class", &class), ("x", &at(x)), ("y", &at(y))], text);
}

/// A tenth of a pixel is enough. What is no number has no place.
fn at(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    format!("{value:.1}")
}

/// The way's symbol, filled; `title` shows while the pointer is on it.
fn symbol(html: &mut Html, look: Look, (x, y): (f64, f64), title: &str) {
    let path = match look.symbol {
        0 => format!("M{x:.1} {y:.1}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"),
        1 => format!("M{x:.1} {y:.1}m-3.5 -3.5h7v7h-7z"),
        2 => format!("M{x:.1} {y:.1}m0 -4.5l4.4 7.8h-8.8z"),
        3 => format!("M{x:.1} {y:.1}m0 -5l5 5l-5 5l-5 -5z"),
        4 => format!("M{x:.1} {y:.1}m0 4.5l4.4 -7.8h-8.8z"),
        _ => format!("M{x:.1} {y:.1}m-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z"),
    };
    html.element("path", &[("class", &format!("symbol {}", look.class())), ("d", &path)], |html| {
        html.with_text("title", &[], title);
    });
}

/// The figure of a row that a chart of lines shows.
pub(super) struct Measure {
    pub(super) name: String,
    pub(super) value: fn(&Row) -> Option<f64>,
    /// Whatever the values.
    pub(super) logarithmic: bool,
}

impl Measure {
    /// Those that the table draws of its own, else speed and processor time.
    pub(super) fn all_of(table: &str) -> Vec<Self> {
        let own = table::by_name(table).map_or(&[][..], |known| known.curves());
        if own.is_empty() {
            return vec![Self::speed(table), Self::cpu()];
        }
        let of =
            |curve: &Curve| Self { name: curve.name.to_owned(), value: curve.value, logarithmic: curve.logarithmic };
        own.iter().map(of).collect()
    }

    pub(super) fn speed(table: &str) -> Self {
        Self { name: unit(table).to_owned(), value: |row| Some(compared(row)), logarithmic: false }
    }

    pub(super) fn cpu() -> Self {
        Self {
            name: "CPU µs each, whole process".to_owned(),
            value: |row| Some(row.cpu_us_per_op.total),
            logarithmic: false,
        }
    }
}

/// A line per way along the axis of a panel.
pub(super) fn lines(html: &mut Html, panel: &Panel<'_>, axis: &str, measure: &Measure, looks: &[(&str, Look)]) {
    let rows = || panel.points.iter().flat_map(|point| point.rows.iter().copied());
    let values: Vec<f64> = rows().filter_map(measure.value).collect();
    let scale = Scale::of(values.iter().copied(), measure.logarithmic);
    let (right, base) = (WIDTH - RIGHT, TOP + PLOT);
    let values: Vec<f64> = panel.points.iter().map(|point| point.value.log2()).collect();
    let (first, last) = (values.first().copied().unwrap_or(0.0), values.last().copied().unwrap_or(0.0));
    let x = |value: f64| LEFT + (value.log2() - first) / (last - first).max(f64::EPSILON) * (right - LEFT);
    let y = |value: f64| base - scale.place(value) * PLOT;
    let kind = if scale.logarithmic { " (logarithmic)" } else { "" };
    let described = format!("{}{kind} by {axis}, a line per way; the figures are in the tables", measure.name);
    svg(html, WIDTH, TOP + PLOT + BOTTOM, &described, |html| {
        for tick in scale.ticks() {
            line(html, "grid", (LEFT, y(tick)), (right, y(tick)));
            label(html, "tick end", (LEFT - 6.0, y(tick) + 4.0), &number(tick));
        }
        for point in &panel.points {
            line(html, "grid", (x(point.value), TOP), (x(point.value), base));
            label(html, "tick middle", (x(point.value), base + 16.0), point.label);
        }
        label(html, "tick middle", ((LEFT + right) / 2.0, base + 34.0), axis);
        let mut ends = Vec::new();
        // The library's last, on top.
        for (way, look) in looks.iter().rev() {
            let of_way = |point: &'_ crate::report::axes::Point<'_>| {
                let row = point.rows.iter().find(|row| row.way == *way)?;
                Some((x(point.value), (measure.value)(row)?, format!("{way}, {}", point.case)))
            };
            let points: Vec<(f64, f64, String)> = panel.points.iter().filter_map(of_way).collect();
            let path: Vec<String> = points.iter().map(|(x, value, _)| format!("{x:.1},{:.1}", y(*value))).collect();
            let class = format!("line {}", look.class());
            let dash = DASHES[look.dash];
            html.empty("polyline", &[("class", &class), ("stroke-dasharray", &dash), ("points", &path.join(" "))]);
            for (x, value, title) in &points {
                symbol(html, *look, (*x, y(*value)), &format!("{title}: {} {}", short(*value), measure.name));
            }
            ends.extend(points.last().map(|(x, value, _)| End { x: *x, y: y(*value), way, look: *look }));
        }
        for (place, End { x, y, way, look }) in apart(ends) {
            line(html, "leader", (x + 6.0, y), (right + 12.0, place));
            symbol(html, look, (right + 18.0, place), way);
            label(html, "name", (right + 27.0, place + 4.0), way);
        }
    });
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

/// A bar per way for speed and one for processor time, from which the eye takes ratios: they begin
/// at 0.
pub(super) fn bars(html: &mut Html, table: &str, rows: &[&Row], looks: &[(&str, Look)]) {
    const NAMES: f64 = 130.0;
    const ROW: f64 = 22.0;
    const GAP: f64 = 24.0;
    const WIDTH: f64 = 900.0;
    const FIGURE: f64 = 60.0;
    let half = (WIDTH - NAMES - GAP) / 2.0;
    let (speeds, cpus) = (NAMES, NAMES + half + GAP);
    let most = |value: fn(&Row) -> f64| rows.iter().map(|row| value(row)).fold(f64::MIN_POSITIVE, f64::max);
    let fastest =
        rows.iter().map(|row| compared(row) * row.spread().1.clamp(1.0, 10.0)).fold(f64::MIN_POSITIVE, f64::max);
    let dearest = most(|row| row.cpu_us_per_op.total);
    let described = format!("{} and processor time, a bar per way; the figures are in the tables", unit(table));
    svg(html, WIDTH, 24.0 + ROW * rows.len() as f64 + 4.0, &described, |html| {
        label(
            html,
            "tick",
            (speeds, 12.0),
            &format!("{}: the median, and from the slowest to the fastest round", unit(table)),
        );
        label(html, "tick", (cpus, 12.0), "CPU µs each: the caller, paler the pool, palest ring workers");
        for (index, row) in rows.iter().enumerate() {
            let (top, look) = (22.0 + ROW * index as f64, look_of(looks, &row.way));
            let middle = top + 7.0;
            symbol(html, look, (8.0, middle), &row.way);
            label(html, "name", (18.0, middle + 4.0), &row.way);
            let bar = |html: &mut Html, class: &str, x: f64, width: f64, title: String| {
                let class = format!("bar {class} {}", look.class());
                let width = at(width.max(0.0));
                let place: &[(&'static str, &dyn std::fmt::Display)] =
                    &[("class", &class), ("x", &at(x)), ("y", &at(top)), ("width", &width), ("height", &"14")];
                html.element("rect", place, |html| {
                    html.with_text("title", &[], title);
                });
            };
            let full = half - FIGURE;
            let (speed, (slowest, quickest)) = (compared(row), row.spread());
            let long = speed / fastest * full;
            bar(html, "", speeds, long, format!("{}: {} {}", row.way, short(speed), unit(table)));
            if slowest.is_finite() && quickest.is_finite() {
                line(html, "whisker", (speeds + long * slowest, middle), (speeds + long * quickest.min(10.0), middle));
            }
            let text = speeds + (long * quickest.clamp(1.0, 10.0)).min(full) + 6.0;
            label(html, "figure", (text, middle + 4.0), &short(speed));
            let cpu = row.cpu_us_per_op;
            let parts = [
                ("", "the caller", cpu.caller.min(cpu.total)),
                ("paler", "the pool", cpu.pool),
                ("palest", "ring workers", cpu.ring_workers.unwrap_or(0.0)),
            ];
            let mut from = cpus;
            for (class, whose, spent_us) in parts {
                let width = spent_us / dearest * full;
                bar(html, class, from, width, format!("{}: {whose} {spent_us:.1} µs", row.way));
                from += width;
            }
            label(html, "figure", (from + 6.0, middle + 4.0), &format!("{:.1}", cpu.total));
        }
    });
}

/// A line per way from the median to the worst, thinner and thinner, along powers of ten. All
/// charts of a table have one scale.
pub(super) struct Spreads(Scale);

impl Spreads {
    /// `None` if no row has latencies.
    pub(super) fn over(rows: &[&Row]) -> Option<Self> {
        let latencies = || rows.iter().filter_map(|row| row.latency_ns);
        let least = latencies().map(|latency| latency.p50).min()?;
        let most = latencies().map(|latency| latency.max).max()?;
        Some(Self(Scale::logarithmic(least.max(100) as f64, most.max(1000) as f64)))
    }

    pub(super) fn draw(&self, html: &mut Html, case: &str, rows: &[&Row], looks: &[(&str, Look)]) {
        const NAMES: f64 = 130.0;
        const ROW: f64 = 18.0;
        const WIDTH: f64 = 900.0;
        const END: f64 = 20.0;
        let rows: Vec<(&Row, Latency)> = rows.iter().filter_map(|row| Some((*row, row.latency_ns?))).collect();
        let bottom = 8.0 + ROW * rows.len() as f64;
        let x = |nanoseconds: u64| NAMES + self.0.place(nanoseconds as f64) * (WIDTH - NAMES - END);
        let described = format!("{case}: latencies, a line per way; the figures are in the tables");
        svg(html, WIDTH, bottom + 22.0, &described, |html| {
            for tick in self.0.ticks() {
                let here = x(tick as u64);
                line(html, "grid", (here, 4.0), (here, bottom));
                label(html, "tick middle", (here, bottom + 15.0), &duration(tick));
            }
            for (index, (row, latency)) in rows.iter().enumerate() {
                let (y, look) = (8.0 + ROW * (index as f64 + 0.5), look_of(looks, &row.way));
                let class = |name: &str| format!("{name} {}", look.class());
                let worst = latency.p9999.unwrap_or(latency.p999);
                line(html, &class("spread thick"), (x(latency.p50), y), (x(latency.p99), y));
                line(html, &class("spread"), (x(latency.p99), y), (x(latency.p999), y));
                line(html, &class("spread thin"), (x(latency.p999), y), (x(latency.max), y));
                for quantile in [latency.p99, latency.p999, worst] {
                    line(html, &class("mark"), (x(quantile), y - 5.0), (x(quantile), y + 5.0));
                }
                let title = format!("{}: {}", row.way, told(latency));
                let circle: &[(&'static str, &dyn std::fmt::Display)] =
                    &[("class", &class("worst")), ("cx", &at(x(latency.max))), ("cy", &at(y)), ("r", &"3.5")];
                html.element("circle", circle, |html| {
                    html.with_text("title", &[], &title);
                });
                symbol(html, look, (x(latency.p50), y), &title);
                label(html, "name end", (NAMES - 14.0, y + 4.0), &row.way);
            }
        });
    }
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
            let ways = in_order(table.ways().into_iter());
            let looks = looks(&ways);
            for (index, (way, look)) in looks.iter().enumerate() {
                assert!(looks[..index].iter().all(|(_, other)| other != look), "{} {way}", table.name());
                assert_eq!(look.hue, wanted(way).map_or(0, |hue| hue + 1), "{} {way}", table.name());
            }
            let others = ways.iter().filter_map(|way| wanted(way));
            let hues: HashSet<usize> = others.clone().collect();
            assert_eq!(hues.len(), others.count().min(HUES), "{}: each has a hue of its own", table.name());
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
        assert!(Spreads::over(&[]).is_none());
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
