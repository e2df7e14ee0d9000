//! The table `reads`: cold random reads of 4 KiB, by depth.

use super::columns::Column;
use super::reading::{Case, DEVICE_COLUMNS, PAGE_BLOCK, Readers, State, Work, asked_for, file_size};
use super::{Phase, Run, Table};
use crate::error::{Error, Result};
use crate::measure::options::Options;
use crate::measure::work::Target;
use crate::report::axes::{Point, panels};
use crate::report::figures::{micro, short};
use crate::report::notes::Code;
use crate::report::{Report, best, fio};
use crate::ways::{FirstRead, OURS, WAYS, first_read};

pub struct Reads(pub Readers);

pub static READS: Reads = Reads(Readers::reading(WAYS));

const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 128];
const QUICK_DEPTHS: [usize; 3] = [1, 4, 32];

/// More in flight for less than this share of the best is not worth it.
const ENOUGH: f64 = 0.95;

impl Reads {
    pub fn cases(options: &Options) -> Vec<Case> {
        let depths = options.or_usual(&options.depths, &QUICK_DEPTHS, &DEPTHS);
        let by_depth = depths.into_iter().map(|depth| Case {
            name: format!("depth={depth}"),
            state: State::Cold,
            work: Work::Reads { block: PAGE_BLOCK, depth, callers: 1 },
        });
        asked_for(by_depth.collect(), options)
    }
}

impl Reads {
    /// The library's one-time costs, which its warm rounds do not show.
    fn note_first_read(&self, run: &mut Run<'_>) -> Result<()> {
        let ours = |way: &&str| way.starts_with(OURS) && run.options.chooses(way);
        if !self.ways().iter().any(ours) {
            return Ok(());
        }
        let file = run.test_file()?;
        file.make_cold()?;
        let FirstRead { instance, open, first, second } =
            first_read(Target::of(file), PAGE_BLOCK).map_err(|error| Error::io("read", file.path(), &error))?;
        let [instance, open, first, second] = [instance, open, first, second].map(|time| micro(time.as_nanos() as u64));
        let text = format!(
            "reads: a new instance of {OURS} took {instance} µs, to open the file {open}, its first cold read {first}, \
             the next one {second}"
        );
        run.report.note(Code::FirstOperation, text);
        Ok(())
    }
}

impl Table for Reads {
    fn name(&self) -> &'static str {
        "reads"
    }

    fn about(&self) -> &'static str {
        "Cold random reads of 4 KiB, by depth"
    }

    fn title(&self) -> &'static str {
        "reads: cold random reads of 4 KiB, operations/s by depth"
    }

    fn ways(&self) -> Vec<&'static str> {
        self.0.names(&Self::cases(&Options::new(false, 0)))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--depths", "--direct", "--rate"]
    }

    fn usual(&self) -> bool {
        true
    }

    fn check(&self, options: &Options) -> Result<()> {
        self.0.check(options, &Self::cases(options))
    }

    fn file_size(&self, options: &Options) -> Option<u64> {
        Some(file_size(options))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        self.0.case_ways(options, &Self::cases(options))
    }

    fn figures(&self) -> &'static [Column] {
        DEVICE_COLUMNS
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        match phase {
            Phase::File => {
                self.note_first_read(run)?;
                self.0.measure(self, &Self::cases(run.options), run)
            }
            _ => Ok(()),
        }
    }

    fn fio(&self, options: &Options, place: &fio::Place<'_>, jobs: &mut fio::Jobs) {
        Readers::fio(self.name(), options, &Self::cases(options), place, jobs);
    }

    /// The depth that is enough for cold reads.
    fn advice(&self, report: &Report) -> Option<String> {
        let (_, panels) = panels(report, self.name()).filter(|(axis, _)| *axis == "depth")?;
        let points = &panels.first()?.points;
        let (first, last) = (points.first()?, points.last()?);
        let speed = |point: &Point<'_>| best(&point.rows);
        let most = points.iter().map(speed).fold(0.0, f64::max);
        let enough = points.iter().find(|point| speed(point) >= ENOUGH * most)?;
        if enough.case == first.case {
            let (given, label) = (short(speed(first)), first.label);
            return Some(format!(
                "More than {label} cold read in flight gains nothing here: depth {label} gives {given}/s."
            ));
        }
        let way = enough.rows.iter().max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))?;
        let more = if enough.case == last.case { " More was not tried." } else { "" };
        let leanest = enough
            .rows
            .iter()
            .filter(|row| row.ops_per_s >= ENOUGH * way.ops_per_s)
            .min_by(|a, b| a.cpu_us_per_op.total.total_cmp(&b.cpu_us_per_op.total))?;
        Some(format!(
            "For cold reads use depth {}: {}/s by {}, {:.1} times what depth {} gives.{more} Of the ways that give as much, {} takes \
             the least processor time, {:.0} µs a read.",
            enough.label,
            short(way.ops_per_s),
            way.way,
            way.ops_per_s / speed(first),
            first.label,
            leanest.way,
            leanest.cpu_us_per_op.total,
        ))
    }
}
