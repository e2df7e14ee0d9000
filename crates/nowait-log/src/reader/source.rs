//! Source of a reader's records: an open log, or the findings of a recovery.

use std::ops::Range;
use std::sync::Arc;

use crate::commit::Shared;
use crate::dir::{LogDir, Run, Segment};
use crate::format::Control;
use crate::recover::{Damage, Found};

/// Source of the records.
pub(super) enum Source {
    /// A log that is open for appending.
    Live(Arc<Shared>),
    /// The findings of a recovery, which do not change.
    Found(Box<Still>),
}

pub(super) struct Still {
    pub(super) dir: LogDir,
    pub(super) control: Control,
    /// Intact pieces of the log, by LSN.
    pub(super) pieces: Vec<Piece>,
    /// Records between the pieces that a salvage left out.
    pub(super) gaps: Vec<Range<u64>>,
    pub(super) damage: Vec<Damage>,
    pub(super) first_lsn: u64,
    pub(super) last_lsn: u64,
}

/// Consecutive intact blocks.
#[derive(Clone, PartialEq)]
pub(super) enum Piece {
    Segment(Segment),
    Run(Run),
}

impl Piece {
    pub(super) fn number(&self) -> u64 {
        match self {
            Piece::Segment(segment) => segment.header.number,
            Piece::Run(run) => run.segment,
        }
    }

    pub(super) fn lsns(&self) -> Range<u64> {
        match self {
            Piece::Segment(segment) => segment.header.first_lsn()..segment.last_lsn + 1,
            Piece::Run(run) => run.lsns.clone(),
        }
    }

    /// Last record; `u64::MAX` for the segment that is being written.
    pub(super) fn last_lsn(&self) -> u64 {
        match self {
            Piece::Segment(segment) => segment.last_lsn,
            Piece::Run(run) => run.lsns.end - 1,
        }
    }
}

impl Still {
    /// Returns the intact blocks of files that are no longer part of the log.
    pub(super) fn aside(dir: LogDir, control: Control, runs: Vec<Run>) -> Still {
        let pieces: Vec<Piece> = runs.into_iter().map(Piece::Run).collect();
        let first_lsn = pieces.first().map_or(1, |piece| piece.lsns().start);
        let last_lsn = pieces.last().map_or(0, |piece| piece.lsns().end - 1);
        let everywhere = std::iter::once(0..u64::MAX).collect();
        Still { dir, control, pieces, gaps: everywhere, damage: Vec::new(), first_lsn, last_lsn }
    }

    pub(super) fn new(dir: LogDir, found: Found) -> Still {
        let Found { control, chain, runs, recovery, end, .. } = found;
        let segments = chain.into_iter().map(Piece::Segment);
        let mut pieces: Vec<Piece> = segments.chain(runs.into_iter().map(Piece::Run)).collect();
        pieces.retain(|piece| !piece.lsns().is_empty());
        pieces.sort_by_key(|piece| piece.lsns().start);
        let last_lsn = if recovery.damage.is_empty() { end.lsn } else { recovery.next_lsn - 1 };
        let first_lsn = pieces.first().map_or(recovery.first_lsn, |piece| piece.lsns().start.min(recovery.first_lsn));
        Still { dir, control, pieces, gaps: recovery.gaps, damage: recovery.damage, first_lsn, last_lsn }
    }

    pub(super) fn piece(&self, lsn: u64) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.lsns().contains(&lsn))
    }

    /// Returns the first record after those missing at `lsn`, and the damage, unless a salvage left
    /// them out.
    pub(super) fn behind_hole(&self, lsn: u64) -> Option<(u64, Option<Damage>)> {
        if self.piece(lsn).is_some() || lsn < self.first_lsn {
            return None;
        }
        let next = self.pieces.iter().map(|piece| piece.lsns().start).find(|start| *start > lsn);
        let next = next.unwrap_or(self.last_lsn + 1);
        if self.gaps.iter().any(|gap| gap.start <= lsn && next <= gap.end) {
            return Some((next, None));
        }
        let here = |damage: &&Damage| damage.lsns.contains(&lsn);
        let damage = self.damage.iter().find(here).or(self.damage.first())?;
        Some((next, Some(damage.clone())))
    }
}

impl Source {
    pub(super) fn dir(&self) -> &LogDir {
        match self {
            Source::Live(shared) => &shared.dir,
            Source::Found(still) => &still.dir,
        }
    }

    pub(super) fn control(&self) -> &Control {
        match self {
            Source::Live(shared) => &shared.control,
            Source::Found(still) => &still.control,
        }
    }

    pub(super) fn last_lsn(&self) -> u64 {
        match self {
            Source::Live(shared) => shared.durable(),
            Source::Found(still) => still.last_lsn,
        }
    }

    /// First record of the source.
    pub(super) fn first_lsn(&self) -> u64 {
        match self {
            Source::Live(shared) => shared.handover.first(),
            Source::Found(still) => still.first_lsn,
        }
    }
}
