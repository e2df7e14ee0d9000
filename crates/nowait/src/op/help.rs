//! Sees to a queue whose thread does something else.
//!
//! A thread's own queue is submitted to and reaped by that thread, and a ring of a runtime by the runtime. Either may compute,
//! or block on the very thread whose write waits behind one of theirs. So whoever finds that something has to wait for what
//! may be in such a queue asks for help: a thread of ours, `nowait-helper`, does what the queue's thread would do, until
//! nothing is in flight there. Those who ask:
//!
//! * a write that has to wait for others, and whoever gives an engine a write that others wait for (`core/throttle.rs`);
//! * a thread or task that waits for a file's changes to end, or for its durable writes (`op/outstanding.rs`);
//! * a future that is polled by another thread than the one that submitted (`op/slot.rs`);
//! * a thread that goes, or returns from its `block_on`, and leaves operations behind (`engine/local/mod.rs`).
//!
//! And without being asked, help comes to a thread that has not been in its queue for a while and has something in flight there:
//! whoever waits for that may not be known, such as a set of futures that was moved and polls only those that were woken.
//!
//! Help is for what is in flight when it is asked for. The queue is locked only while its thread works in it: then it needs no
//! help, and tells when it leaves ([`look`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::buf::lock;
use crate::sys::PerProcess;

/// How long a queue's thread has to come back by itself.
const GRACE: Duration = Duration::from_micros(500);
/// How soon a queue without a descriptor is looked at again.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// How soon one whose thread was at work in it is looked at again, should its thread not tell.
const SURELY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long a thread with something in flight may stay out of its queue before help comes unasked.
const OUT_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The thread goes when nobody has asked for so long.
const IDLE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// What may need help.
pub(crate) trait Helped: Send + Sync {
    /// Help is asked for. True when the helper has to come. Where others see to a queue it never has.
    fn want(&self) -> bool {
        false
    }
    /// Help is wanted, still.
    fn is_wanted(&self) -> bool {
        false
    }
    /// Does what its thread would, without waiting.
    fn help(&self) -> State {
        State::Quiet
    }
    /// Whether something is in flight, or in line. If its thread has not been in there since the last glance, help is wanted from now on;
    /// if nothing ends, what is in line goes elsewhere.
    fn glance(&self) -> bool {
        false
    }
    /// Readable when there is something to do.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// A runtime sees to it, and not a thread.
    fn is_of_a_runtime(&self) -> bool {
        false
    }
}

/// What a queue was found to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing is in flight: help is not wanted any more.
    Quiet,
    /// Its thread is at work in it.
    Inside,
    /// Something was done, or has come.
    Progress,
    /// The kernel has it all.
    Waits,
}

#[derive(Default)]
struct Helper {
    members: Mutex<Members>,
    /// What wakes the thread; made with the first one. None where descriptors are short: then it looks now and then.
    bell: OnceLock<Option<OwnedFd>>,
    /// The bell rings, or the thread is about to look.
    looks: AtomicBool,
    /// Something may be in flight in a queue, at which the thread glances now and then.
    watches: AtomicBool,
}

#[derive(Default)]
struct Members {
    known: Vec<Weak<dyn Helped>>,
    /// Those whose threads are gone, until nothing is in flight there.
    kept: Vec<Arc<dyn Helped>>,
    runs: bool,
}

fn helper() -> &'static Arc<Helper> {
    static HELPER: PerProcess<Arc<Helper>> = PerProcess::new();
    HELPER.get(Arc::default)
}

/// Makes a queue known, as long as it lives.
pub(crate) fn register(queue: Weak<dyn Helped>) {
    let mut members = lock(&helper().members);
    members.known.retain(|known| known.strong_count() > 0);
    members.known.push(queue);
}

/// Keeps a queue whose thread is gone until nothing is in flight there.
pub(crate) fn keep(queue: Arc<dyn Helped>) {
    queue.want();
    lock(&helper().members).kept.push(queue);
    look();
}

/// Whose queues are meant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// The queues of threads.
    Threads,
    /// Those, and the rings of runtimes.
    All,
}

/// Has every queue seen to that has something in flight now.
pub(crate) fn ask() {
    ask_of(Of::All);
}

/// Has the queues of threads seen to, or all.
pub(crate) fn ask_of(of: Of) {
    let members = lock(&helper().members);
    let known: Vec<_> = members.known.iter().filter_map(Weak::upgrade).collect();
    drop(members);
    // Not one after the first that says so.
    let asked = known.iter().filter(|queue| of == Of::All || !queue.is_of_a_runtime());
    let wanted = asked.fold(false, |wanted, queue| queue.want() | wanted);
    if wanted {
        look();
    }
}

/// Something is given to a queue, whose thread may not come back to it.
#[inline]
pub(crate) fn watch() {
    if !helper().watches.load(Relaxed) && !helper().watches.swap(true, SeqCst) {
        look();
    }
}

/// Has the helper look at those that want help.
#[cold]
pub(crate) fn look() {
    let helper = helper();
    if helper.looks.swap(true, SeqCst) {
        return;
    }
    let mut members = lock(&helper.members);
    if members.runs {
        drop(members);
        return helper.ring();
    }
    members.runs = true;
    drop(members);
    let for_thread = helper.clone();
    let thread = std::thread::Builder::new().name("nowait-helper".into());
    if thread.spawn(move || for_thread.run()).is_err() {
        // Threads are short: the next who asks tries again.
        lock(&helper.members).runs = false;
        helper.looks.store(false, SeqCst);
    }
}

impl Helper {
    fn bell(&self) -> Option<&OwnedFd> {
        let make = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        self.bell.get_or_init(make).as_ref()
    }

    fn ring(&self) {
        let _ = self.bell().map(|bell| rustix::io::write(bell, &1u64.to_ne_bytes()));
    }

    fn run(&self) {
        loop {
            std::thread::sleep(GRACE);
            // In this order: what comes from here on rings again, and no ring is taken back after it was heard of.
            let _ = self.bell().map(|bell| rustix::io::read(bell, &mut [0; 8]));
            self.looks.store(false, SeqCst);
            let watches = self.glances();
            let mut timeout = if watches { OUT_MAX } else { IDLE };
            let mut wanted = self.wanted();
            let mut states = Vec::with_capacity(wanted.len());
            for queue in &wanted {
                let mut state = queue.help();
                while state == State::Progress {
                    state = queue.help();
                }
                match (state, queue.descriptor()) {
                    (State::Inside, _) if timeout == IDLE => timeout = SURELY,
                    (State::Waits, None) => timeout = AGAIN,
                    _ => {}
                }
                states.push(state);
            }
            let mut keep = states.iter().map(|state| *state != State::Quiet);
            wanted.retain(|_| keep.next().unwrap_or(false));
            states.retain(|state| *state != State::Quiet);
            if !self.wait(&wanted, &states, timeout) && wanted.is_empty() && !watches {
                let mut members = lock(&self.members);
                if !self.looks.load(SeqCst) {
                    members.runs = false;
                    return;
                }
            }
        }
    }

    /// Glances at all queues. False when nothing is in flight in any.
    fn glances(&self) -> bool {
        if !self.watches.swap(false, SeqCst) {
            return false;
        }
        let known: Vec<_> = lock(&self.members).known.iter().filter_map(Weak::upgrade).collect();
        // Each of them, for its own sake.
        let busy = known.iter().fold(false, |busy, queue| queue.glance() | busy);
        if busy {
            self.watches.store(true, SeqCst);
        }
        busy
    }

    /// Those that want help; those that are quiet are kept no longer.
    fn wanted(&self) -> Vec<Arc<dyn Helped>> {
        let mut members = lock(&self.members);
        let mut gone = Vec::new();
        members.kept.retain(|queue| {
            let wanted = queue.is_wanted();
            if !wanted {
                gone.push(queue.clone());
            }
            wanted
        });
        let known = members.known.iter().filter_map(Weak::upgrade);
        let wanted = known.filter(|queue| queue.is_wanted()).collect();
        drop(members);
        // With nothing locked: a ring is closed here.
        drop(gone);
        wanted
    }

    /// Waits until there may be something to do. False when the time is up.
    fn wait(&self, wanted: &[Arc<dyn Helped>], states: &[State], timeout: Timespec) -> bool {
        let waiting = wanted.iter().zip(states).filter(|(_, state)| **state == State::Waits);
        let descriptors = waiting.filter_map(|(queue, _)| queue.descriptor());
        let bell = self.bell().map(|bell| bell.as_fd());
        let timeout = if bell.is_none() { AGAIN } else { timeout };
        let mut fds: Vec<_> =
            bell.into_iter().chain(descriptors).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // Interrupted: it looks, and waits again.
        !matches!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(0))
    }
}
