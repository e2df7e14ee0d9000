//! The same reads for every executor, with tokio's runtimes attached or not.

use crate::common::{Sample, Watchdog, assert_settled};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use nowait::{Engine, File, Nowait, Route};
use tokio::runtime;

pub(crate) const LEN: usize = 2 << 20;
pub(crate) const PAGE: usize = 4096;

/// Reads one after the other, all at once, and as they complete; of a cold file, so that some will
/// wait.
pub(crate) async fn read_mix(file: &File, sample: &Sample) {
    let offset = |i: usize| ((i * 7919 * PAGE + i) % LEN) as u64;
    sample.cool();
    for i in 0..20 {
        assert!(*file.read_at(vec![0; PAGE], offset(i)).await.unwrap().1 == padded(sample, offset(i)));
    }
    let all = join_all((20..120).map(|i| file.read_at(vec![0; PAGE], offset(i)))).await;
    for (i, result) in (20..120).zip(all) {
        assert!(*result.unwrap().1 == padded(sample, offset(i)));
    }
    sample.cool();
    let read = |i| async move { (i, file.read_at(vec![0; PAGE], offset(i)).await) };
    let mut unordered: FuturesUnordered<_> = (0..300).map(read).collect();
    while let Some((i, result)) = unordered.next().await {
        assert!(*result.unwrap().1 == padded(sample, offset(i)));
    }
    assert_eq!(file.size().await.unwrap(), LEN as u64);
    // More cached reads than a task's budget, in one poll.
    for i in 0..300 {
        assert!(*file.read_at(vec![0; PAGE], offset(i)).await.unwrap().1 == padded(sample, offset(i)));
    }
}

/// Reads in a runtime's root future, then in as many tasks at once.
pub(crate) fn read_mix_in(runtime: &runtime::Runtime, file: &File, sample: &'static Sample, tasks: usize) {
    runtime.block_on(read_mix(file, sample));
    let task = |_| {
        let file = file.clone();
        runtime.spawn(async move { read_mix(&file, sample).await })
    };
    let tasks: Vec<_> = (0..tasks).map(task).collect();
    runtime.block_on(join_all(tasks)).into_iter().for_each(Result::unwrap);
}

/// Page of the sample at `offset`; zeros past the end.
pub(crate) fn padded(sample: &Sample, offset: u64) -> Vec<u8> {
    let mut page = sample.expected(offset, PAGE).to_vec();
    page.resize(PAGE, 0);
    page
}

/// Instances by the ways of serving that matter to executors.
pub(crate) fn instances() -> Vec<Nowait> {
    let auto = Nowait::builder();
    let builders = [auto.clone(), auto.clone().engine(Engine::Pool), auto.route(Some(Route::Ring))];
    builders.into_iter().map(|builder| builder.build().unwrap()).collect()
}

/// Makes runtimes, attached to an instance or not: then the watcher serves them.
#[derive(Clone)]
pub(crate) struct Runtimes(#[cfg_attr(not(feature = "tokio"), allow(dead_code))] pub(crate) Option<Nowait>);

impl Runtimes {
    /// Both kinds.
    pub(crate) fn of(nowait: &Nowait) -> [Runtimes; 2] {
        [None, Some(nowait.clone())].map(Runtimes)
    }

    pub(crate) fn multi_thread(&self) -> runtime::Runtime {
        self.make(runtime::Builder::new_multi_thread().worker_threads(2).enable_all())
    }

    pub(crate) fn current_thread(&self) -> runtime::Runtime {
        self.make(runtime::Builder::new_current_thread().enable_all())
    }

    pub(crate) fn make(&self, builder: &mut runtime::Builder) -> runtime::Runtime {
        let runtime = builder.build().unwrap();
        #[cfg(feature = "tokio")]
        if let Some(nowait) = &self.0 {
            let _entered = runtime.enter();
            nowait.attach_tokio().unwrap();
            nowait.attach_tokio().unwrap();
        }
        runtime
    }
}

/// Runs the mix on each instance with what `run` makes of it, under a watchdog.
pub(crate) fn on_each_instance(name: &str, run: impl Fn(File, &'static Sample, Runtimes)) {
    let _watchdog = Watchdog::new(name, 60);
    let sample = Sample::leaked(LEN);
    for nowait in instances() {
        for runtimes in Runtimes::of(&nowait) {
            run(sample.open(&nowait), sample, runtimes);
            assert_settled(&nowait);
        }
    }
    std::fs::remove_dir_all(sample.path.parent().unwrap()).unwrap();
}

#[cfg(target_os = "linux")]
pub(crate) fn direct_reads_wait_elsewhere(sample: Sample) {
    let nowait = Nowait::builder().build().unwrap();
    let mut options = nowait::OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    let file = match options.open_in(&nowait, &sample.path).wait() {
        Ok(file) => file,
        Err(error) => return eprintln!("skipped: direct I/O: {error}"),
    };
    if file.direct() == nowait::DirectIo::Refused {
        return eprintln!("skipped: direct I/O: the file lies in memory");
    }
    let before = nowait.stats();
    let reads = join_all((0..64).map(|i| file.read_range(i * 16384, PAGE)));
    for (i, read) in futures::executor::block_on(reads).into_iter().enumerate() {
        assert!(*read.unwrap() == *sample.expected(i as u64 * 16384, PAGE), "read {i}");
    }
    let gathered =
        futures::executor::block_on(file.gather([(0, PAGE), (65536, PAGE)]).into_buffer(nowait::Buf::zeroed(2 * PAGE)));
    assert!(gathered.unwrap().iter().all(|range| range.unwrap().len() == PAGE));
    let stats = nowait.stats();
    assert_eq!((stats.inline, stats.attempts), (before.inline, before.attempts), "{stats:?}");
}
