use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use nowait_object_store::Options;

use super::NowaitFileSystem;
use super::object_store::local::LocalFileSystem;
use super::object_store::path::Path;
use super::object_store::{
    CopyMode, CopyOptions, DynObjectStore, Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, PutPayload, RenameOptions, RenameTargetMode, Result,
};
use crate::system;

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % n
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.pick(&[0, 1, 10, 4095, 4096, 5000, 70_000, 300_000]);
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } => "not found",
        Error::AlreadyExists { .. } => "already exists",
        Error::Precondition { .. } => "precondition",
        Error::NotModified { .. } => "not modified",
        Error::NotImplemented { .. } => "not implemented",
        Error::InvalidPath { .. } => "invalid path",
        Error::Generic { .. } => "generic",
        _ => "another",
    }
}

/// What two stores can have in common: not inodes, and not times.
fn common(meta: &ObjectMeta) -> (Path, u64, bool) {
    let e_tag = meta.e_tag.as_deref().unwrap_or_default();
    (meta.location.clone(), meta.size, e_tag.starts_with('"') && e_tag.ends_with('"'))
}

#[derive(Clone, Debug)]
enum Step {
    Put(Path, Vec<Vec<u8>>, PutMode),
    Upload(Path, Vec<Vec<u8>>, bool),
    Get(Path, Option<GetRange>),
    GetIfUnchanged(Path, bool),
    Head(Path),
    Ranges(Path, Vec<std::ops::Range<u64>>),
    Copy(Path, Path, bool),
    Rename(Path, Path, bool),
    Delete(Path),
    DeleteMany(Vec<Path>),
    List(Option<Path>),
    ListAfter(Option<Path>, Path),
    ListDir(Option<Path>),
}

fn step(random: &mut Random) -> Step {
    // Names that meet, directories that are objects' prefixes, and names that want care.
    let names = [
        "a",
        "b",
        "a/b",
        "a/b/c",
        "d/e/f",
        "d/e/g",
        "d/é/ü",
        "x y/%20",
        "x y/a%2Fb",
        "q?r&s=t",
        "h#1",
        "h#one",
        "#",
        "d/+~:@!$'()*,;=",
        "long/nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
        "link",
        "broken",
        "linked/one",
        "..hidden",
        "",
    ];
    let name = |random: &mut Random| Path::parse(random.pick(&names)).unwrap();
    let prefix = |random: &mut Random| match random.below(3) {
        0 => None,
        _ => Some(Path::parse(random.pick(&["a", "d", "d/e", "x y", "none", "a/b/c", "linked", ""])).unwrap()),
    };
    let range = |random: &mut Random| {
        let start = random.pick(&[0, 1, 9, 4000, 4096, 65_536, 299_999, 300_000, 1 << 40]);
        start..start + random.pick(&[0, 1, 2, 100, 4096, 100_000])
    };
    match random.below(16) {
        0..3 => {
            let parts = (0..random.below(3) + 1).map(|_| random.bytes()).collect();
            let mode = random.pick(&[PutMode::Overwrite, PutMode::Overwrite, PutMode::Create]);
            Step::Put(name(random), parts, mode)
        }
        3 => Step::Upload(name(random), (0..random.below(4)).map(|_| random.bytes()).collect(), random.below(4) > 0),
        4 | 5 => {
            let wanted = match random.below(4) {
                0 => None,
                1 => Some(GetRange::Bounded(range(random))),
                2 => Some(GetRange::Offset(range(random).end)),
                _ => Some(GetRange::Suffix(range(random).end)),
            };
            Step::Get(name(random), wanted)
        }
        6 => Step::GetIfUnchanged(name(random), random.below(2) == 0),
        7 => Step::Head(name(random)),
        8 | 9 => Step::Ranges(name(random), (0..random.below(6)).map(|_| range(random)).collect()),
        10 => Step::Copy(name(random), name(random), random.below(2) == 0),
        11 => Step::Rename(name(random), name(random), random.below(2) == 0),
        12 => Step::Delete(name(random)),
        13 => {
            // Each once: of two deletes at a time either is the first.
            let paths: BTreeSet<_> = (0..random.below(5)).map(|_| name(random)).collect();
            Step::DeleteMany(paths.into_iter().collect())
        }
        14 => match random.below(2) {
            0 => Step::List(prefix(random)),
            _ => Step::ListAfter(prefix(random), name(random)),
        },
        _ => Step::ListDir(prefix(random)),
    }
}

/// Everything that an operation answers, as text.
fn shown<T: Debug>(result: Result<T>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => kind(&error).into(),
    }
}

async fn listed(objects: futures::stream::BoxStream<'static, Result<ObjectMeta>>) -> String {
    let found: Vec<_> = objects.collect().await;
    let mut found: Vec<_> = found.into_iter().map(|meta| shown(meta.map(|meta| common(&meta)))).collect();
    found.sort();
    format!("{found:?}")
}

async fn run(store: &DynObjectStore, step: Step) -> String {
    let payload = |parts: Vec<Vec<u8>>| parts.into_iter().map(bytes::Bytes::from).collect::<PutPayload>();
    match step {
        Step::Put(path, parts, mode) => {
            let put = store.put_opts(&path, payload(parts), PutOptions::from(mode)).await;
            shown(put.map(|put| put.e_tag.is_some()))
        }
        Step::Upload(path, parts, complete) => {
            let mut upload = match store.put_multipart(&path).await {
                Ok(upload) => upload,
                Err(error) => return kind(&error).into(),
            };
            let parts: Vec<_> = parts.into_iter().map(|part| upload.put_part(part.into())).collect();
            // The last first.
            let mut written = Vec::new();
            for part in parts.into_iter().rev() {
                written.push(shown(part.await));
            }
            let end = match complete {
                true => shown(upload.complete().await.map(|put| put.e_tag.is_some())),
                false => shown(upload.abort().await),
            };
            format!("{written:?} {end}")
        }
        Step::Get(path, range) => {
            let got = async {
                let got = store.get_opts(&path, GetOptions { range, ..Default::default() }).await?;
                let (meta, range) = (common(&got.meta), got.range.clone());
                Ok((meta, range, got.bytes().await?))
            };
            shown(got.await)
        }
        Step::GetIfUnchanged(path, same) => {
            let got = async {
                let e_tag = store.head(&path).await?.e_tag.filter(|_| same).unwrap_or("\"else\"".into());
                let matching = GetOptions { if_match: Some(e_tag.clone()), ..Default::default() };
                let matched = shown(store.get_opts(&path, matching).await.map(|got| got.range));
                let changed = GetOptions { if_none_match: Some(e_tag), head: true, ..Default::default() };
                Ok((matched, shown(store.get_opts(&path, changed).await.map(|got| got.range))))
            };
            shown(got.await)
        }
        Step::Head(path) => shown(store.head(&path).await.map(|meta| common(&meta))),
        Step::Ranges(path, ranges) => shown(store.get_ranges(&path, &ranges).await),
        Step::Copy(from, to, replace) => {
            let mode = if replace { CopyMode::Overwrite } else { CopyMode::Create };
            shown(store.copy_opts(&from, &to, CopyOptions::new().with_mode(mode)).await)
        }
        Step::Rename(from, to, replace) => {
            let mode = if replace { RenameTargetMode::Overwrite } else { RenameTargetMode::Create };
            shown(store.rename_opts(&from, &to, RenameOptions::new().with_target_mode(mode)).await)
        }
        Step::Delete(path) => shown(store.delete(&path).await),
        Step::DeleteMany(paths) => {
            let deleted = store.delete_stream(futures::stream::iter(paths).map(Ok).boxed());
            format!("{:?}", deleted.map(shown).collect::<Vec<_>>().await)
        }
        Step::List(prefix) => listed(store.list(prefix.as_ref())).await,
        Step::ListAfter(prefix, offset) => listed(store.list_with_offset(prefix.as_ref(), &offset)).await,
        Step::ListDir(prefix) => {
            let listed = store.list_with_delimiter(prefix.as_ref()).await.map(|list| {
                let mut objects: Vec<_> = list.objects.iter().map(common).collect();
                objects.sort();
                (list.common_prefixes, objects)
            });
            shown(listed)
        }
    }
}

/// True where the stores differ on purpose: ours is the directory of `NowaitFileSystem`, root that of the other.
fn may_differ(step: &Step, ours: &std::path::Path, root: &std::path::Path) -> bool {
    let path = |path: &Path| root.join(path.as_ref());
    // Copies of `LocalFileSystem` are links to one file, of which a rename leaves both names.
    let are_one = |from: &Path, to: &Path| system::are_one(&path(from), &path(to));
    // What the kernel says of a path that leads through a file.
    let leads_through_a_file =
        |to: &Path| path(to).metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotADirectory);
    // `LocalFileSystem` does not remove empty directories in the way of an object. Its incomplete
    // uploads may lie in such a directory.
    let is_empty = |to: &Path| {
        let to = ours.join(to.as_ref());
        let mut entries = walkdir::WalkDir::new(&to).follow_root_links(false).into_iter();
        to.is_dir() && entries.all(|entry| entry.unwrap().file_type().is_dir())
    };
    match step {
        Step::Get(from, _) | Step::GetIfUnchanged(from, _) | Step::Head(from) => {
            system::DENIES_DIRECTORIES && path(from).is_dir()
        }
        Step::Put(to, ..) | Step::Upload(to, ..) | Step::Copy(_, to, _) | Step::Rename(_, to, _) if is_empty(to) => {
            true
        }
        // A directory is no object. It copies a symbolic link as such, which leads elsewhere then.
        // Of two things that are wrong it may tell the other: here a missing object comes first.
        Step::Copy(from, to, _) | Step::Rename(from, to, _) => {
            path(from).is_dir()
                || path(from).is_symlink()
                || are_one(from, to)
                || !path(from).exists() && leads_through_a_file(to)
        }
        Step::Ranges(from, _) => path(from).is_dir(),
        // It deletes some at a time: another may be there still, or not, and then leads nowhere.
        Step::DeleteMany(paths) => {
            let leads_through =
                |one: &Path, other: &Path| one != other && !other.as_ref().is_empty() && one.prefix_matches(other);
            paths.iter().any(|one| paths.iter().any(|other| leads_through(one, other)))
        }
        _ => false,
    }
}

/// Symbolic links to an object, a directory and nothing.
fn links(root: &std::path::Path) {
    fs::create_dir_all(root.join("d")).unwrap();
    for (to, link) in [("d/e/f", "link"), ("nowhere", "broken"), ("d", "linked")] {
        system::symlink(to, &root.join(link));
    }
}

async fn compare(options: Options, steps: usize) {
    let seed = RandomState::new().build_hasher().finish() | 1;
    let seed = std::env::var("NOWAIT_SEED").map_or(seed, |seed| seed.parse().unwrap());
    println!("seed: NOWAIT_SEED={seed}");
    let mut random = Random(seed);
    let (ours, theirs) = (crate::common::temp_dir(), crate::common::temp_dir());
    links(ours.path());
    links(theirs.path());
    let store: Arc<DynObjectStore> = Arc::new(NowaitFileSystem::with_prefix(ours.path(), options).unwrap());
    let stock: Arc<DynObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(theirs.path()).unwrap());
    let mut answers = BTreeMap::<_, u32>::new();
    for number in 0..steps {
        let step = step(&mut random);
        if may_differ(&step, ours.path(), theirs.path()) {
            continue;
        }
        let (answer, expected) = (run(&*store, step.clone()).await, run(&*stock, step.clone()).await);
        let mut short = format!("{step:?}");
        short.truncate(short.char_indices().nth(200).map_or(short.len(), |(at, _)| at));
        assert!(answer == expected, "step {number}, seed {seed}: {short}\n{:.300}\n{:.300}", answer, expected);
        *answers.entry(answer.chars().take(12).collect::<String>()).or_default() += 1;
    }
    let all = |store: Arc<DynObjectStore>| async move {
        let mut objects: Vec<_> = store.list(None).map_ok(|meta| meta.location).try_collect().await.unwrap();
        objects.sort();
        let mut contents = Vec::new();
        for location in objects {
            contents.push((location.clone(), store.get(&location).await.unwrap().bytes().await.unwrap()));
        }
        contents
    };
    assert!(all(store).await == all(stock).await, "seed {seed}");
    // It has met what it is for.
    for wanted in ["not found", "already exis", "generic"] {
        assert!(answers.contains_key(wanted), "seed {seed}: {answers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_the_same() {
    compare(Options::new(), 3000).await;
}

#[tokio::test]
async fn answers_are_the_same_past_the_page_cache_and_in_streams() {
    compare(Options::new().direct(true).piece_bytes_max(5000).gap_bytes(4096), 1000).await;
}

#[cfg(feature = "cache")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_the_same_through_a_cache() {
    let cache = nowait_cache::PageCache::builder().capacity_bytes(64 << 10).page_bytes(4096).build().unwrap();
    compare(Options::new().cache(&cache).piece_bytes_max(20_000), 2000).await;
    assert!(cache.stats().read_bytes > 0, "{:?}", cache.stats());
}
