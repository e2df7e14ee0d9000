//! An open loop: operations start by a schedule, not when the one before completes. Latency counts
//! from the scheduled start. So operations that wait behind a slow one are slow, too, as for their
//! clients. A closed loop would start no operations meanwhile ("coordinated omission").

use std::future::poll_fn;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::random::Random;

/// Scheduled starts of the operations of a round, relative to its start, in ascending order.
#[derive(Debug, Clone, PartialEq)]
pub enum Pace {
    At(Arc<[Duration]>),
    /// One per interval, the first at once.
    Every(Duration),
}

impl Pace {
    /// Draws `count` arrivals of a Poisson process. The exponential gaps, including one after the
    /// last arrival, are scaled to the exact time of `count` arrivals at this rate. Otherwise the
    /// rate of a round with a thousand arrivals would vary by 3 %.
    pub fn poisson(per_second: f64, count: usize, random: &mut Random) -> Self {
        // Never the logarithm of 0.
        let mut gap = || -(1.0 - (random.number() >> 11) as f64 / (1u64 << 53) as f64).ln();
        let mut sum = 0.0;
        let mut next = || {
            sum += gap();
            sum
        };
        let drawn: Vec<f64> = (0..count).map(|_| next()).collect();
        let scale = count as f64 / per_second / next();
        Self::At(drawn.into_iter().map(|at| Duration::from_secs_f64(at * scale)).collect())
    }
}

/// Schedule of a round that has started.
#[derive(Debug, Clone)]
pub struct Schedule {
    began: Instant,
    /// `None` to start each operation as soon as possible.
    pace: Option<Pace>,
}

impl Schedule {
    /// Starts the schedule now.
    pub fn new(pace: Option<&Pace>) -> Self {
        Self { began: Instant::now(), pace: pace.cloned() }
    }

    /// Returns the scheduled start of operation `index`. `None` without a pace, and after the last
    /// arrival.
    #[inline]
    pub fn due(&self, index: usize) -> Option<Instant> {
        let after = match self.pace.as_ref()? {
            Pace::At(moments) => *moments.get(index)?,
            Pace::Every(interval) => interval.mul_f64(index as f64),
        };
        Some(self.began + after)
    }

    /// Sleeps until the scheduled start, and returns the time from which the latency counts.
    #[inline]
    pub fn wait(&self, index: usize) -> Instant {
        let Some(due) = self.due(index) else { return Instant::now() };
        sleep_until(due);
        due
    }
}

pub fn sleep_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        thread::sleep(left);
    }
}

/// Makes sleeps of this thread, and of threads that it starts, exact until dropped. The default
/// timer slack of 50 µs would dominate a latency.
#[derive(Debug)]
pub struct ExactTimers(());

impl ExactTimers {
    pub fn set() -> Result<Self> {
        let exact = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        exact.map_err(|error| Error::new(ErrorKind::Other, format!("prctl PR_SET_TIMERSLACK: {error}")))?;
        Ok(Self(()))
    }
}

impl Drop for ExactTimers {
    fn drop(&mut self) {
        // `None` restores the default, which cannot fail.
        let _ = rustix::thread::set_current_timer_slack(None);
    }
}

/// Operations of a round that futures share: each future takes the next one. A thread wakes the
/// future at the scheduled start, as a reactor does when a request arrives. The thread ends when
/// the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Arrivals(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pace: Option<Pace>,
    /// Starts with the first requested operation, or by [`Arrivals::begin`].
    schedule: OnceLock<Schedule>,
    count: usize,
    next: AtomicUsize,
    /// Channel to the thread that wakes; `None` without a pace.
    alarm: Option<Mutex<Sender<(Instant, Waker)>>>,
}

impl Arrivals {
    /// Makes `count` operations.
    pub fn new(pace: Option<&Pace>, count: usize) -> Self {
        let alarm = pace.map(|_| {
            let (sender, receiver) = mpsc::channel::<(Instant, Waker)>();
            thread::spawn(move || {
                let _exact = ExactTimers::set();
                for (due, waker) in receiver {
                    sleep_until(due);
                    waker.wake();
                }
            });
            Mutex::new(sender)
        });
        let (schedule, next) = (OnceLock::new(), AtomicUsize::new(0));
        Self(Arc::new(Inner { pace: pace.cloned(), schedule, count, next, alarm }))
    }

    /// Starts the schedule now, not with the first requested operation.
    pub fn begin(&self) -> Instant {
        self.0.schedule.get_or_init(|| Schedule::new(self.0.pace.as_ref())).began
    }

    /// Takes the next operation: its index, and the time from which its latency counts. Ready at
    /// that time. `None` after the last.
    pub async fn next(&self) -> Option<(usize, Instant)> {
        let inner = &*self.0;
        let take = || Some(inner.next.fetch_add(1, Ordering::Relaxed)).filter(|&index| index < inner.count);
        let Some(alarm) = &inner.alarm else { return take().map(|index| (index, Instant::now())) };
        let mut taken = None;
        poll_fn(|context| {
            let (index, due) = match taken {
                Some(taken) => taken,
                None => {
                    // Under one lock, so that the thread receives operations in the order of their
                    // scheduled starts.
                    let alarm = alarm.lock().unwrap_or_else(PoisonError::into_inner);
                    let Some(index) = take() else { return Poll::Ready(None) };
                    let schedule = inner.schedule.get_or_init(|| Schedule::new(inner.pace.as_ref()));
                    let Some(due) = schedule.due(index) else { return Poll::Ready(None) };
                    if Instant::now() < due {
                        let _ = alarm.send((due, context.waker().clone()));
                    }
                    *taken.insert((index, due))
                }
            };
            if Instant::now() < due { Poll::Pending } else { Poll::Ready(Some((index, due))) }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_behind_a_slow_operation_is_slow_too() {
        let schedule = Schedule::new(Some(&Pace::Every(Duration::from_millis(1))));
        let mut late = 0;
        for index in 0..60 {
            let started = schedule.wait(index);
            if index == 5 {
                thread::sleep(Duration::from_millis(40));
            }
            late += usize::from(started.elapsed() > Duration::from_millis(5));
        }
        // About 40 operations were scheduled meanwhile, and nearly all of them are late.
        assert!(late >= 30, "{late}");
    }

    #[test]
    fn without_a_rate_nothing_is_due() {
        let schedule = Schedule::new(None);
        assert!(schedule.due(1000).is_none() && schedule.wait(1000).elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn arrivals_are_a_poisson_process_and_the_same_for_the_same_seed() {
        let draw = |seed| Pace::poisson(1000.0, 100_000, &mut Random::new(seed));
        let Pace::At(moments) = draw(1) else { panic!("no moments") };
        assert!(draw(1) == draw(1) && draw(1) != draw(2));
        assert!(moments.len() == 100_000 && moments.is_sorted());
        let last = moments[99_999].as_secs_f64();
        assert!((99.9..=100.0).contains(&last), "{last}");
        let gaps: Vec<f64> = moments.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // For an exponential distribution both are 1, and this share of gaps is longer than the
        // mean.
        assert!((mean - 1.0).abs() < 0.01 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let longer = gaps.iter().filter(|gap| **gap > 1.0).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1f64).exp()).abs() < 0.01, "{longer}");
    }

    #[test]
    fn a_schedule_ends_with_its_arrivals() {
        let pace = Pace::At([1, 3].map(Duration::from_millis).into());
        let schedule = Schedule::new(Some(&pace));
        let (first, second) = (schedule.due(0).unwrap(), schedule.due(1).unwrap());
        assert_eq!(second - first, Duration::from_millis(2));
        assert!(schedule.due(2).is_none());
    }

    #[test]
    fn futures_take_each_operation_once_and_none_before_its_moment() {
        for pace in [Some(Pace::poisson(2000.0, 100, &mut Random::new(7))), None] {
            let arrivals = Arrivals::new(pace.as_ref(), 100);
            let tasks = (0..8).map(|_| async {
                let mut taken = Vec::new();
                while let Some((index, due)) = arrivals.next().await {
                    assert!(Instant::now() >= due);
                    taken.push(index);
                }
                taken
            });
            let mut all = nowait::block_on(futures_util::future::join_all(tasks)).concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..100));
        }
    }
}
