//! What all tasks share: files with their models, a log of appends, and what went wrong.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nowait::{File, Nowait, OpenOptions};

use crate::model::Region;

pub(crate) const REGION: usize = 24 << 10;
pub(crate) const REGIONS: usize = 32;
/// Number and length of a record of the appended file.
pub(crate) const FRAME: usize = 12;

/// What runs a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executor {
    Tokio,
    CurrentThread,
    /// smol, or `block_on` with several tasks.
    Other,
    /// A thread that may block for as long as it likes.
    Alone,
}

pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) file: File,
    regions: Vec<Mutex<Region>>,
    /// Changes of the length have the file alone.
    pub(crate) gate: tokio::sync::RwLock<()>,
}

impl Shared {
    pub(crate) fn region(&self, index: usize) -> MutexGuard<'_, Region> {
        lock(&self.regions[index])
    }
}

pub(crate) struct World {
    pub(crate) nowait: Nowait,
    pub(crate) files: Vec<Shared>,
    pub(crate) appended: File,
    pub(crate) records: AtomicU64,
    pub(crate) acknowledged: Mutex<Vec<u64>>,
    pub(crate) given_up: AtomicU64,
    pub(crate) stop: AtomicBool,
    /// Tasks may start threads.
    pub(crate) may_spawn: AtomicBool,
    faults: Mutex<Vec<String>>,
    kinds: Mutex<BTreeMap<&'static str, u64>>,
    /// What each task does, and since when.
    under_way: Mutex<HashMap<usize, (String, Instant)>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(crate) fn new(nowait: &Nowait, dir: &Path) -> Arc<World> {
        let open = |name: &str, direct: bool| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).direct(direct);
            options.open_in(nowait, dir.join(name)).wait().unwrap()
        };
        let shared = |direct: bool, index: usize| {
            let name = format!("{}-{index}", if direct { "direct" } else { "cached" });
            let file = open(&name, direct);
            file.set_len((REGIONS * REGION) as u64).wait().unwrap();
            // Blocks in part take another descriptor, which is there when none is free.
            file.write_all_at(vec![0; 2], 1).wait().unwrap();
            let regions = (0..REGIONS).map(|_| Mutex::new(Region::zeroed(REGION))).collect();
            Shared { name, file, regions, gate: tokio::sync::RwLock::default() }
        };
        Arc::new(World {
            nowait: nowait.clone(),
            files: (0..6).map(|index| shared(index % 2 == 1, index)).collect(),
            appended: open("appended", false),
            records: AtomicU64::new(0),
            acknowledged: Mutex::default(),
            given_up: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            may_spawn: AtomicBool::new(true),
            faults: Mutex::default(),
            kinds: Mutex::default(),
            under_way: Mutex::default(),
        })
    }

    pub(crate) fn fault(&self, text: String) {
        let mut faults = lock(&self.faults);
        if faults.len() < 20 {
            eprintln!("FAULT: {text}");
            faults.push(text);
        }
    }

    pub(crate) fn begins(&self, task: usize, kind: &'static str, place: String) {
        *lock(&self.kinds).entry(kind).or_default() += 1;
        lock(&self.under_way).insert(task, (format!("{kind} {place}"), Instant::now()));
    }

    pub(crate) fn ends(&self, task: usize) {
        lock(&self.under_way).remove(&task);
    }

    pub(crate) fn operations(&self) -> u64 {
        lock(&self.kinds).values().sum()
    }

    /// Whether a task has been at one operation for longer than `bound`; reports it.
    pub(crate) fn hangs(&self, bound: Duration) -> bool {
        let under_way = lock(&self.under_way);
        let hung: Vec<_> = under_way.values().filter(|(_, since)| since.elapsed() > bound).collect();
        for (what, since) in &hung {
            self.fault(format!("{what} hangs for {:?}; threads: {:?}", since.elapsed(), threads()));
        }
        !hung.is_empty()
    }

    pub(crate) fn check_at_the_end(&self, dir: &Path) {
        // Tasks that hang still hold what a look would wait for.
        if !lock(&self.faults).is_empty() {
            return;
        }
        self.nowait.drain();
        for shared in &self.files {
            shared.file.settled().wait();
            let bytes = std::fs::read(dir.join(&shared.name)).unwrap();
            if bytes.len() != REGIONS * REGION {
                self.fault(format!("{} has {} bytes", shared.name, bytes.len()));
                continue;
            }
            for (index, bytes) in bytes.chunks(REGION).enumerate() {
                if let Some(fault) = shared.region(index).fault(0, bytes) {
                    self.fault(format!("{}, region {index}, at the end: {fault}", shared.name));
                }
            }
        }
        self.check_appended(&std::fs::read(dir.join("appended")).unwrap());
        if !crate::common::eventually(|| self.nowait.stats().started == self.nowait.stats().ended()) {
            self.fault(format!("operations that started did not end: {:?}", self.nowait.stats()));
        }
        let kinds = lock(&self.kinds);
        eprintln!("{kinds:?}");
    }

    /// Every record lies whole in the file, once; each that was acknowledged does.
    fn check_appended(&self, mut bytes: &[u8]) {
        let mut times: HashMap<u64, u32> = HashMap::new();
        while !bytes.is_empty() {
            let (Some(number), Some(length)) = (bytes.get(..8), bytes.get(8..FRAME)) else {
                return self.fault("the last record appended is cut off".into());
            };
            let number = u64::from_le_bytes(number.try_into().unwrap());
            let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
            let record = bytes.get(FRAME..length).unwrap_or_default();
            if length < FRAME || record.len() != length - FRAME || record.iter().any(|byte| *byte != number as u8) {
                return self.fault(format!("record {number} appended is not whole"));
            }
            *times.entry(number).or_default() += 1;
            bytes = &bytes[length..];
        }
        for number in lock(&self.acknowledged).iter() {
            times.entry(*number).or_default();
        }
        for (number, times) in times {
            if times != 1 {
                self.fault(format!("record {number} was appended {times} times"));
            }
        }
    }

    pub(crate) fn assert_no_fault(&self) {
        let faults = lock(&self.faults);
        assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    }
}

/// Names and states of this process's threads.
fn threads() -> BTreeMap<String, u32> {
    let mut threads = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let state = read("stat").rsplit(')').next().unwrap_or_default().trim().chars().next().unwrap_or('?');
        *threads.entry(format!("{} {state} {}", read("comm").trim(), read("wchan"))).or_default() += 1;
    }
    threads
}
