//! Tickets: what they say without waiting, and one wait for many of them.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use common::{Watchdog, mounts, on};
use nowait::sim::{Faults, Sim};
use nowait::{ErrorKind, block_on};
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy, Ticket, Tickets};

const DIR: &str = "/log";

fn on_sim(sim: &Sim, depth: u32) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth };
    let sync = SyncPolicy::Fixed(strategy);
    Options::new().create(true).instance(&on(sim)).segment_bytes(64 << 10).sync(sync).maintenance(false)
}

#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn poll<F: Future + Unpin>(wakes: &Arc<Wakes>, future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&Waker::from(wakes.clone())))
}

fn is_ok(answer: Option<nowait::Result<u64>>, lsn: u64) -> bool {
    matches!(answer, Some(Ok(found)) if found == lsn)
}

/// To ask starts nothing; the answer is that of a wait, once there is one.
#[test]
fn asking_does_not_wait() {
    let _watchdog = Watchdog::new("tickets that are asked", 60);
    let sim = Sim::manual(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim, 1)).wait().unwrap();
    let tickets: Vec<Ticket> = (0..5).map(|_| log.append(b"a record").wait().unwrap()).collect();
    let all: Tickets = (0..3).map(|_| log.append(b"another").wait().unwrap()).collect();
    while sim.step() {}
    assert!(tickets.iter().all(|ticket| !ticket.is_durable() && ticket.try_result().is_none()));
    assert!(!all.is_durable() && all.try_result().is_none(), "what was asked started a write");

    // A later record, and with it all of them.
    let mut durable = log.wait_durable(8);
    let wakes = Arc::new(Wakes::default());
    assert!(poll(&wakes, &mut durable).is_pending());
    while log.durable_lsn() < 8 {
        assert!(!tickets[4].is_durable() && !all.is_durable(), "it is not durable yet");
        assert!(sim.step());
    }
    assert!(tickets.iter().zip(1..).all(|(ticket, lsn)| ticket.is_durable() && is_ok(ticket.try_result(), lsn)));
    assert!(all.is_durable() && matches!(all.try_result(), Some(Ok(()))));
    all.wait().unwrap();
}

/// The answer of a log that failed is the one that a wait gives.
#[test]
fn a_failure_is_told_to_who_asks() {
    let _watchdog = Watchdog::new("tickets of a log that fails", 60);
    let sim = Sim::manual(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim, 1)).wait().unwrap();
    let before = log.append(b"durable").wait().unwrap();
    let (wakes, mut waits) = (Arc::new(Wakes::default()), log.wait_durable(1));
    assert!(poll(&wakes, &mut waits).is_pending());
    while log.durable_lsn() < 1 {
        assert!(sim.step());
    }
    let mut faults = Faults::default();
    faults.write_error = 1.0;
    sim.set_faults(faults);
    let on_its_way = log.append(b"on its way").wait().unwrap();
    let mut submitted = log.wait_durable(2);
    assert!(poll(&wakes, &mut submitted).is_pending());
    let only_appended = log.append(b"only appended").wait().unwrap();
    let mut both = Tickets::new();
    both.add(log.append(b"and one more").wait().unwrap());
    assert!(poll(&wakes, &mut both).is_pending());
    while on_its_way.try_result().is_none() {
        assert!(sim.step());
    }
    let kind = |ticket: &Ticket| ticket.try_result().map(|answer| answer.unwrap_err().kind());
    assert!(before.is_durable() && is_ok(before.try_result(), 1));
    assert_eq!(kind(&on_its_way), Some(ErrorKind::Indeterminate));
    assert_eq!(kind(&only_appended), Some(ErrorKind::Poisoned));
    assert!(!on_its_way.is_durable() && !only_appended.is_durable());
    let Poll::Ready(Err(error)) = poll(&wakes, &mut both) else { panic!("the log has failed") };
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    assert!(!both.is_durable() && matches!(both.try_result(), Some(Err(_))));
    both.add(before);
    assert_eq!(both.wait().unwrap_err().kind(), ErrorKind::Poisoned, "a durable record changes nothing");
}

/// One task waits for many: it is woken once, and not before the last is durable.
#[test]
fn many_are_awaited_with_one_wake() {
    let _watchdog = Watchdog::new("many tickets", 60);
    for depth in [1, 4] {
        for seed in 1..40 {
            let sim = Sim::manual(seed);
            let options = on_sim(&sim, depth).segment_bytes(1 << 20).first_segment_bytes(1 << 20);
            let (log, _) = Log::open(DIR, &options).wait().unwrap();
            // Blocks of 512 KiB at most: several.
            let record = vec![7; 60_000];
            let tickets: Vec<Ticket> = (0..12).map(|_| log.append(&record).wait().unwrap()).collect();
            // In any order.
            let mut left: Vec<Ticket> = tickets.into_iter().rev().collect();
            left.rotate_left(seed as usize % 12);
            let mut all: Tickets = left.into_iter().collect();
            let wakes = Arc::new(Wakes::default());
            assert!(poll(&wakes, &mut all).is_pending());
            while wakes.0.load(SeqCst) == 0 {
                assert!(sim.step(), "seed {seed}: it was never woken");
                assert_eq!(wakes.0.load(SeqCst), u64::from(log.durable_lsn() == 12), "seed {seed}");
            }
            assert!(matches!(poll(&wakes, &mut all), Poll::Ready(Ok(()))), "seed {seed}");
            while sim.step() {}
            assert_eq!(wakes.0.load(SeqCst), 1, "seed {seed}");
        }
    }
}

/// After a cut of the log's end numbers are given anew: the higher one is not the later one.
#[test]
fn records_of_the_same_numbers_are_told_apart() {
    let _watchdog = Watchdog::new("tickets around a cut", 60);
    let sim = Sim::new(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim, 1)).wait().unwrap();
    let append = || log.append(b"a record").wait().unwrap();
    let mut old = Vec::from_iter((0..10).map(|_| append()));
    old.pop().unwrap().wait().unwrap();
    log.maintain();
    log.truncate_suffix(3).wait().unwrap();
    assert!(old.iter().all(Ticket::is_durable), "they were durable when they were cut off");
    for last_is_old in [false, true] {
        let (new, durable) = (append(), old.pop().unwrap());
        assert!(!new.is_durable() && new.lsn() < durable.lsn());
        let both: Tickets = if last_is_old { [new, durable] } else { [durable, new] }.into_iter().collect();
        assert!(!both.is_durable(), "the new record counts");
        both.wait().unwrap();
        assert_eq!(log.durable_lsn(), log.last_lsn());
    }
}

#[test]
fn none_are_ready() {
    assert!(Tickets::new().is_durable() && matches!(Tickets::new().try_result(), Some(Ok(()))));
    Tickets::new().wait().unwrap();
    block_on(Tickets::new()).unwrap();
}

/// Threads with records in flight, in two logs, on files.
#[test]
fn threads_wait_for_what_is_in_flight() {
    let _watchdog = Watchdog::new("records in flight", 120);
    let dir = mounts::temp_dir();
    for by in [Submitter::Ring, Submitter::Call] {
        let strategy = Strategy { durability: Durability::Write, by, depth: 1 };
        let options = Options::new().create(true).segment_bytes(1 << 20).sync(SyncPolicy::Fixed(strategy));
        let logs = ["one", "two"].map(|name| {
            let path = dir.path().join(format!("{name} {by:?}"));
            Log::open(path, &options).wait().unwrap().0
        });
        thread::scope(|scope| {
            for number in 0..4 {
                let logs = &logs;
                scope.spawn(move || {
                    for round in 0..20 {
                        let mut all = Tickets::new();
                        let mut last = [0; 2];
                        for record in 0..32 {
                            let at = (record + number) % 2;
                            let ticket = logs[at].append(&[number as u8; 100]).wait().unwrap();
                            last[at] = ticket.lsn();
                            all.add(ticket);
                        }
                        match (round + number) % 3 {
                            0 => block_on(all).unwrap(),
                            1 => all.wait().unwrap(),
                            _ => {
                                while all.try_result().is_none() {
                                    thread::yield_now();
                                }
                                assert!(all.is_durable());
                            }
                        }
                        for (log, lsn) in logs.iter().zip(last) {
                            assert!(log.durable_lsn() >= lsn);
                        }
                    }
                });
            }
        });
        logs.into_iter().for_each(|log| log.close().wait().unwrap());
    }
}
