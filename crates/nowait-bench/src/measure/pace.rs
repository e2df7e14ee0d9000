//! An open loop: operations begin when a schedule says so, not when the one before is complete.
//! Their latency counts from the moment at which they were to begin. So those that wait behind a
//! slow one are slow, too, as they are for whoever asked for them; a closed loop would not even ask
//! meanwhile ("coordinated omission").

use std::future::{Future, poll_fn};
use std::sync::mpsc::{self, Sender};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// When each operation of a round is to begin.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    began: Instant,
    /// `None`: as soon as it can.
    interval: Option<Duration>,
}

impl Schedule {
    /// Begins now.
    pub fn new(interval: Option<Duration>) -> Self {
        Self { began: Instant::now(), interval }
    }

    /// When operation `index` is to begin.
    #[inline]
    pub fn due(&self, index: usize) -> Option<Instant> {
        Some(self.began + self.interval?.mul_f64(index as f64))
    }

    /// Sleeps until then, and gives the moment from which the latency counts.
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

/// Wakes futures when they are due, from a thread of its own, which ends with the last of these.
#[derive(Clone)]
pub struct Alarm(Sender<(Instant, Waker)>);

impl Alarm {
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::channel::<(Instant, Waker)>();
        // They come in the order in which they are due: operations are taken one after the other.
        thread::spawn(move || {
            for (due, waker) in receiver {
                sleep_until(due);
                waker.wake();
            }
        });
        Self(sender)
    }

    /// Ready from then on.
    pub fn at(&self, due: Instant) -> impl Future<Output = ()> {
        let mut set = false;
        poll_fn(move |context| {
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            if !set {
                set = true;
                let _ = self.0.send((due, context.waker().clone()));
            }
            Poll::Pending
        })
    }
}

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_behind_a_slow_operation_is_slow_too() {
        let schedule = Schedule::new(Some(Duration::from_millis(1)));
        let mut late = 0;
        for index in 0..60 {
            let started = schedule.wait(index);
            if index == 5 {
                thread::sleep(Duration::from_millis(40));
            }
            late += usize::from(started.elapsed() > Duration::from_millis(5));
        }
        // Of the 40 that were to begin meanwhile, all but the last few.
        assert!(late >= 30, "{late}");
    }

    #[test]
    fn without_a_rate_nothing_is_due() {
        let schedule = Schedule::new(None);
        assert!(schedule.due(1000).is_none() && schedule.wait(1000).elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn a_future_is_woken_when_it_is_due() {
        let alarm = Alarm::new();
        let due = Instant::now() + Duration::from_millis(20);
        nowait::block_on(alarm.at(due));
        assert!(Instant::now() >= due);
    }
}
