//! The contents of a simulated disk: as reads see them now, and as a crash would leave them. Knows
//! no engine, no faults and no clock but its own.
//!
//! A file consists of its contents, its durable contents, and the changes between these; names
//! likewise. A durable change joins the durable contents once all earlier changes have. A crash
//! applies changes in their order. So a kept part of an earlier change never overwrites a later,
//! durable one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::ops::{Bound, Range};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::change::{DiskChange, Names, Naming, Node, Unsynced};
use super::image::{Image, SECTOR, in_sector, sectors};

/// The largest file that a simulated disk takes.
pub(super) const FILE_MAX: usize = 1 << 30;

/// Normalizes a path: removes the components that mean the directory itself.
pub(super) fn plain(path: &Path) -> PathBuf {
    path.components().filter(|component| *component != Component::CurDir).collect()
}

struct Dated {
    number: u64,
    durable: bool,
    change: DiskChange,
}

struct Inode {
    /// The last name that it had.
    path: PathBuf,
    contents: Image,
    durable: Image,
    changes: VecDeque<Dated>,
    /// A write-back failed, and was not reported.
    has_report: bool,
    /// Parts that cannot be read.
    spoiled: Vec<Range<usize>>,
    /// Number of the last change of what reads return.
    changed: u64,
}

impl Inode {
    fn new(path: PathBuf, contents: Image) -> Inode {
        Inode {
            path,
            durable: contents.clone(),
            contents,
            changes: VecDeque::new(),
            has_report: false,
            spoiled: Vec::new(),
            changed: 0,
        }
    }

    fn settle(&mut self) {
        while let Some(Dated { durable: true, change, .. }) = self.changes.front() {
            change.make(&mut self.durable);
            self.changes.pop_front();
        }
    }
}

fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_path_buf()
}

struct DatedNaming {
    number: u64,
    /// The directories that have to be synced yet.
    unsynced_in: Vec<PathBuf>,
    naming: Naming,
}

/// A write that the disk has and has not completed.
pub(super) struct UnderWay {
    pub(super) file: usize,
    /// None: at the end.
    pub(super) start: Option<usize>,
    pub(super) bytes: Arc<Vec<u8>>,
}

/// Files and names. Numbers tell the order of changes, and of what has begun.
pub(super) struct Store {
    number: u64,
    files: Vec<Inode>,
    names: Names,
    durable_names: Names,
    namings: VecDeque<DatedNaming>,
    under_way: BTreeMap<u64, UnderWay>,
    pub(super) capacity: u64,
}

impl Store {
    pub(super) fn new() -> Store {
        Store {
            number: 0,
            files: Vec::new(),
            names: Names::new(),
            durable_names: Names::new(),
            namings: VecDeque::new(),
            under_way: BTreeMap::new(),
            capacity: u64::MAX,
        }
    }

    /// Something begins: its number is larger than those of all changes that were made before.
    pub(super) fn begin(&mut self, write: Option<UnderWay>) -> u64 {
        self.number += 1;
        self.set_under_way(self.number, write);
        self.number
    }

    /// Sets the rest of a write that has begun.
    pub(super) fn set_under_way(&mut self, number: u64, write: Option<UnderWay>) {
        match write {
            Some(write) => drop(self.under_way.insert(number, write)),
            None => drop(self.under_way.remove(&number)),
        }
    }

    pub(super) fn contents(&self, file: usize) -> Option<&Image> {
        self.files.get(file).map(|file| &file.contents)
    }

    /// Number of the last change of a file's contents.
    pub(super) fn changed(&self, file: usize) -> u64 {
        self.files[file].changed
    }

    /// How far the files with names may grow, all together.
    pub(super) fn room(&self) -> u64 {
        if self.capacity == u64::MAX {
            return u64::MAX;
        }
        let length = |node: &Node| match node {
            Node::File(file) => self.files[*file].contents.len() as u64,
            Node::Directory => 0,
        };
        self.capacity.saturating_sub(self.names.values().map(length).sum())
    }

    fn change(&mut self, file: usize, change: DiskChange, durable: bool) {
        self.number += 1;
        let file = &mut self.files[file];
        file.changed = self.number;
        change.make(&mut file.contents);
        file.changes.push_back(Dated { number: self.number, durable, change });
        file.settle();
    }

    /// Sectors of a file cannot be read, until they are written.
    pub(super) fn spoil(&mut self, file: usize, range: Range<usize>) {
        let start = range.start / SECTOR * SECTOR;
        self.files[file].spoiled.push(start..range.end.next_multiple_of(SECTOR).max(start));
    }

    /// How many bytes of a range can be read before one that cannot.
    pub(super) fn readable(&self, file: usize, range: Range<usize>) -> usize {
        let spoiled = self.files.get(file).map_or(&[][..], |file| &file.spoiled);
        let touched = spoiled.iter().filter(|spoiled| spoiled.start < range.end && range.start < spoiled.end);
        touched.map(|spoiled| spoiled.start.saturating_sub(range.start)).min().unwrap_or(range.len())
    }

    pub(super) fn write(&mut self, file: usize, start: usize, bytes: Vec<u8>, durable: bool) {
        if !bytes.is_empty() {
            let (from, to) = (start / SECTOR * SECTOR, start + bytes.len());
            let rest = |spoiled: Range<usize>| {
                [spoiled.start..spoiled.end.min(from), spoiled.start.max(to.next_multiple_of(SECTOR))..spoiled.end]
            };
            let spoiled = std::mem::take(&mut self.files[file].spoiled).into_iter().flat_map(rest);
            self.files[file].spoiled = spoiled.filter(|range| !range.is_empty()).collect();
            self.extend(file, start + bytes.len(), durable);
            self.change(file, DiskChange::Bytes { start, bytes: Arc::new(bytes) }, durable);
        }
    }

    /// Fails a write; `keeps` determines the sectors that it has written.
    pub(super) fn fail_write(&mut self, file: usize, start: usize, bytes: &[u8], mut keeps: impl FnMut() -> bool) {
        for sector in 0..sectors(start, bytes.len()) {
            if keeps() {
                let range = in_sector(start, bytes.len(), sector);
                self.write(file, start + range.start, bytes[range].to_vec(), false);
            }
        }
    }

    /// Extends a file with zeros, if it is shorter.
    pub(super) fn extend(&mut self, file: usize, to: usize, durable: bool) {
        let from = self.files[file].contents.len();
        if to > from {
            self.change(file, DiskChange::Length { from, to }, durable);
        }
    }

    pub(super) fn set_len(&mut self, file: usize, to: usize) {
        let from = self.files[file].contents.len();
        if to != from {
            self.change(file, DiskChange::Length { from, to }, false);
        }
    }

    /// Makes changes before `number` durable.
    pub(super) fn sync(&mut self, file: usize, number: u64) {
        let Some(file) = self.files.get_mut(file) else { return };
        file.changes.iter_mut().filter(|dated| dated.number < number).for_each(|dated| dated.durable = true);
        file.settle();
    }

    /// Fails a sync: of the changes before `number` some sectors are written, as `keeps` says. The
    /// rest never will be, though reads go on showing it.
    pub(super) fn fail_sync(&mut self, file: usize, number: u64, mut keeps: impl FnMut() -> bool) {
        let Some(file) = self.files.get_mut(file) else { return };
        for dated in std::mem::take(&mut file.changes) {
            let Dated { durable, change, .. } = &dated;
            if *durable || dated.number >= number {
                file.changes.push_back(dated);
                continue;
            }
            for sector in (0..change.sectors()).filter(|_| keeps()) {
                let change = match change {
                    DiskChange::Bytes { start, bytes } => {
                        let range = in_sector(*start, bytes.len(), sector);
                        DiskChange::Bytes { start: start + range.start, bytes: Arc::new(bytes[range].to_vec()) }
                    }
                    length => length.clone(),
                };
                file.changes.push_back(Dated { number: dated.number, durable: true, change });
            }
        }
        file.settle();
    }

    /// Fails a write-back in the background: some sectors that are not durable never become so, and
    /// the file keeps a report of it.
    pub(super) fn fail_write_back(&mut self, file: usize, keeps: impl FnMut() -> bool) {
        self.fail_sync(file, u64::MAX, keeps);
        if let Some(file) = self.files.get_mut(file) {
            file.has_report = true;
        }
    }

    /// The report of a failed write-back, which is given once.
    pub(super) fn take_report(&mut self, file: usize) -> bool {
        self.files.get_mut(file).is_some_and(|file| std::mem::take(&mut file.has_report))
    }

    /// Reads show what the disk has, and what is still to be written to it: no longer what a sync
    /// that failed has given up.
    pub(super) fn drop_cache(&mut self, file: usize) {
        let Some(file) = self.files.get_mut(file) else { return };
        self.number += 1;
        file.changed = self.number;
        file.contents = file.durable.clone();
        file.changes.iter().for_each(|dated| dated.change.make(&mut file.contents));
    }

    pub(super) fn node(&self, path: &Path) -> Option<Node> {
        match self.names.get(path) {
            None if self.is_directory(path) => Some(Node::Directory),
            node => node.copied(),
        }
    }

    /// The directories of a name are there without being made.
    fn is_directory(&self, path: &Path) -> bool {
        path.file_name().is_none() || self.names_in(path).next().is_some()
    }

    /// Names that begin with a path. Those that do come together, since paths are ordered by their
    /// parts.
    fn names_in<'s>(&'s self, path: &'s Path) -> impl Iterator<Item = &'s Path> {
        let from = self.names.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.map(|(name, _)| &**name).take_while(move |name| name.starts_with(path))
    }

    fn name(&mut self, naming: Naming, unsynced_in: Vec<PathBuf>) {
        self.number += 1;
        naming.make(&mut self.names);
        if let Naming::Renamed { to, file, .. } = &naming {
            self.files[*file].path.clone_from(to);
        }
        self.namings.push_back(DatedNaming { number: self.number, unsynced_in, naming });
        self.settle_names();
    }

    fn settle_names(&mut self) {
        while let Some(first) = self.namings.front().filter(|first| first.unsynced_in.is_empty()) {
            first.naming.make(&mut self.durable_names);
            self.namings.pop_front();
        }
    }

    /// A new file, in place of what had its name; durable at once only if that is said.
    pub(super) fn create(&mut self, path: &Path, contents: &[u8], durable: bool) -> usize {
        self.files.push(Inode::new(path.to_path_buf(), Image::new(contents)));
        let file = self.files.len() - 1;
        let unsynced_in = if durable { Vec::new() } else { vec![parent(path)] };
        self.name(Naming::Created(path.to_path_buf(), Node::File(file)), unsynced_in);
        file
    }

    pub(super) fn create_directory(&mut self, path: &Path) {
        self.name(Naming::Created(path.to_path_buf(), Node::Directory), vec![parent(path)]);
    }

    /// The names in a directory, sorted.
    pub(super) fn list(&self, directory: &Path) -> Vec<OsString> {
        let inside = |name: &Path| match name.strip_prefix(directory).ok()?.components().next()? {
            Component::Normal(first) => Some(first.to_os_string()),
            // Of another root.
            _ => None,
        };
        self.names_in(directory).filter_map(inside).collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn remove(&mut self, path: &Path, file: usize) {
        self.name(Naming::Removed(path.to_path_buf(), file), vec![parent(path)]);
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, file: usize) {
        let mut unsynced_in = vec![parent(from), parent(to)];
        unsynced_in.dedup();
        self.name(Naming::Renamed { from: from.to_path_buf(), to: to.to_path_buf(), file }, unsynced_in);
    }

    /// Makes changes in a directory before `number` durable.
    pub(super) fn sync_directory(&mut self, directory: &Path, number: u64) {
        let before = self.namings.iter_mut().filter(|dated| dated.number < number);
        before.for_each(|dated| dated.unsynced_in.retain(|unsynced| unsynced != directory));
        self.settle_names();
    }

    /// The decisions that a crash now has to make.
    pub(super) fn crash(&self) -> Crash {
        let mut crash = Crash {
            files: BTreeMap::new(),
            names: self.durable_names.clone(),
            spoiled: self.files.iter().map(|file| file.spoiled.clone()).enumerate().collect(),
            undecided: Vec::new(),
            capacity: self.capacity,
        };
        let mut dated: Vec<(u64, Undecided)> = Vec::new();
        let mut nodes: Vec<Node> = self.durable_names.values().copied().collect();
        for DatedNaming { number, unsynced_in, naming } in &self.namings {
            let unsynced = (!unsynced_in.is_empty()).then(|| naming.unsynced());
            dated.push((*number, Undecided { unsynced, what: What::Names(naming.clone()) }));
            // Files that were created before have a durable name.
            if let Naming::Created(_, node) = naming {
                nodes.push(*node);
            }
        }
        for node in nodes {
            let Node::File(number) = node else { continue };
            let file = &self.files[number];
            if crash.files.insert(number, file.durable.clone()).is_some() {
                continue;
            }
            dated.extend(file.changes.iter().map(|Dated { number: date, durable, change }| {
                let unsynced = (!durable).then(|| change.unsynced(&file.path, true));
                (*date, Undecided { unsynced, what: What::File(number, change.clone()) })
            }));
        }
        dated.sort_by_key(|(number, _)| *number);
        crash.undecided = dated.into_iter().map(|(_, undecided)| undecided).collect();
        // Whatever was completed meanwhile, these may still be written.
        let mut ends = BTreeMap::new();
        for UnderWay { file, start, bytes } in self.under_way.values() {
            if !crash.files.contains_key(file) {
                continue;
            }
            let end = ends.entry(*file).or_insert(self.files[*file].contents.len());
            let start = start.unwrap_or(*end);
            let mut undecided = |change: DiskChange| {
                let unsynced = Some(change.unsynced(&self.files[*file].path, false));
                crash.undecided.push(Undecided { unsynced, what: What::File(*file, change) });
            };
            match start.checked_add(bytes.len()) {
                // It will be refused.
                None => continue,
                Some(to) if to > FILE_MAX => continue,
                Some(to) if to > *end => undecided(DiskChange::Length { from: std::mem::replace(end, to), to }),
                Some(_) => {}
            }
            undecided(DiskChange::Bytes { start, bytes: bytes.clone() });
        }
        crash
    }
}

enum What {
    File(usize, DiskChange),
    Names(Naming),
}

/// A change, and what it is called if it may be lost.
struct Undecided {
    unsynced: Option<Unsynced>,
    what: What,
}

/// The durable contents, and the changes since, in their order. Copies no contents.
pub(super) struct Crash {
    files: BTreeMap<usize, Image>,
    names: Names,
    spoiled: BTreeMap<usize, Vec<Range<usize>>>,
    undecided: Vec<Undecided>,
    capacity: u64,
}

impl Crash {
    pub(super) fn unsynced(self) -> Vec<Unsynced> {
        self.undecided.into_iter().filter_map(|undecided| undecided.unsynced).collect()
    }

    /// The disk that is left when `keep` has decided. Copies only pages in which an unsynced change
    /// is kept.
    pub(super) fn decide(self, mut keep: impl FnMut(&Unsynced, usize) -> bool) -> Store {
        let Crash { mut files, mut names, mut spoiled, undecided, capacity } = self;
        let mut lost: BTreeSet<PathBuf> = BTreeSet::new();
        for Undecided { unsynced, what } in undecided {
            match (what, unsynced) {
                (What::File(file, change), unsynced) => {
                    let Some(image) = files.get_mut(&file) else { continue };
                    for sector in 0..change.sectors() {
                        if unsynced.as_ref().is_none_or(|unsynced| keep(unsynced, sector)) {
                            change.make_sector(image, sector);
                        }
                    }
                }
                (What::Names(naming), Some(unsynced)) if !keep(&unsynced, 0) => {
                    if let Naming::Created(path, Node::Directory) = naming {
                        lost.insert(path);
                    }
                }
                (What::Names(naming), _) => naming.make(&mut names),
            }
        }
        // With a directory goes what is in it.
        names.retain(|path, _| !path.ancestors().any(|above| lost.contains(above)));
        let mut store = Store { capacity, ..Store::new() };
        for (path, node) in names {
            let node = match node {
                Node::Directory => Node::Directory,
                Node::File(file) => {
                    let spoiled = spoiled.remove(&file).unwrap_or_default();
                    let left = files.remove(&file).unwrap_or_default();
                    store.files.push(Inode { spoiled, ..Inode::new(path.clone(), left) });
                    Node::File(store.files.len() - 1)
                }
            };
            store.names.insert(path, node);
        }
        store.durable_names = store.names.clone();
        store
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sim::image::{PAGE, Page};

    #[test]
    fn a_crash_copies_only_pages_that_differ() {
        let mut store = Store::new();
        let [first, second] = ["a", "b"].map(|name| store.create(Path::new(name), &[1; 4 * PAGE], true));
        store.write(first, PAGE, vec![2; 10], false);
        let left = store.crash().decide(|_, _| true);
        let shared = |file: usize, path: &str| {
            let Some(Node::File(there)) = left.node(Path::new(path)) else { panic!("{path} is left") };
            let pages = |store: &Store, file: usize| store.files[file].durable.pages.clone();
            let same = |(a, b): &(Page, Page)| Arc::ptr_eq(a, b);
            pages(&store, file).into_iter().zip(pages(&left, there)).filter(same).count()
        };
        assert_eq!((shared(first, "a"), shared(second, "b")), (3, 4));
        assert!(left.files.iter().all(|file| file.changes.is_empty()));
    }
}
