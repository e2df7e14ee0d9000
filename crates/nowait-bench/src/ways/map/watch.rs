//! Observes the calling thread of a populate: how long it was kept from its other work, when pages
//! were announced to it, and what touching one of them then took.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::meter::{Latencies, Round, latencies};
use crate::measure::work::Populate;
use crate::ways::Mapped;

/// A calling thread that has others work for it asks how far they are, sleeps so long, and asks
/// again.
pub(in crate::ways) const TICK: Duration = Duration::from_micros(100);

/// A map with all its pages there, and what was seen on the way.
pub struct Populated {
    pub map: Box<dyn Mapped>,
    /// Until something was announced.
    pub first_chunk: Duration,
    /// Touches of the samples, each as soon as its chunk was announced.
    pub touches: Latencies,
}

/// The round's clock, from [`Watch::start`] to [`Watch::stop`].
pub(in crate::ways) struct Watch<'r, 'a> {
    round: &'r mut Round<'a>,
    job: Populate<'r>,
    began: Instant,
    last: Instant,
    first_chunk: Option<Duration>,
    touches: Latencies,
}

impl<'r, 'a> Watch<'r, 'a> {
    pub(in crate::ways) fn start(job: &Populate<'r>, round: &'r mut Round<'a>) -> Self {
        let touches = latencies();
        round.start();
        let now = Instant::now();
        Self { round, job: *job, began: now, last: now, first_chunk: None, touches }
    }

    /// The thread could do something else now.
    #[inline]
    pub(in crate::ways) fn beat(&mut self) {
        let now = Instant::now();
        self.round.tally.gap(self.last, now);
        self.last = now;
    }

    /// The calling thread is told that these bytes are there.
    pub(in crate::ways) fn announced(&mut self, map: &dyn Mapped, range: Range<u64>) {
        self.first_chunk.get_or_insert_with(|| self.began.elapsed());
        let samples = self.job.samples;
        let first = samples.partition_point(|&sample| sample < range.start);
        touch_all(map, samples[first..].iter().copied().take_while(|&sample| sample < range.end), &mut self.touches);
    }

    /// All is there.
    pub(in crate::ways) fn stop(self, map: impl Mapped + 'static) -> Populated {
        self.round.stop();
        self.round.tally.moved_elsewhere(self.job.pages(), self.job.size);
        let first_chunk = self.first_chunk.unwrap_or_else(|| self.began.elapsed());
        Populated { map: Box::new(map), first_chunk, touches: self.touches }
    }
}

/// The longest gap of a thread that has nothing to do but beat, for so long.
pub(crate) fn idle_gap(time: Duration) -> Duration {
    let began = Instant::now();
    let (mut last, mut longest) = (began, Duration::ZERO);
    while last - began < time {
        thread::sleep(TICK);
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    longest
}

/// Reads a byte at each place, and the clock before and after.
pub(crate) fn touch_all(map: &dyn Mapped, places: impl Iterator<Item = u64>, touches: &mut Latencies) {
    for place in places {
        let started = Instant::now();
        map.touch(place);
        touches.saturating_record(started.elapsed().as_nanos() as u64);
    }
}
