//! A log storage as it is written by hand: one file of entries, and a thread that syncs it.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{Entry, LogId, LogState, OptionalSend, RaftLogReader, StorageIOError, Vote};

use super::{Raft, Types};

/// Before each entry: its length, and a checksum for recovery.
const HEADER: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct PlainStore {
    file: Arc<File>,
    index: Arc<Mutex<Index>>,
    /// Appends that wait for a sync.
    appended: Sender<LogFlushed<Types>>,
}

#[derive(Debug, Default)]
struct Index {
    last: Option<LogId<u64>>,
    purged: Option<LogId<u64>>,
    /// Index of the first entry, and the end of each in the file.
    first: u64,
    start: u64,
    ends: Vec<u64>,
    vote: Option<Vote<u64>>,
}

impl PlainStore {
    pub(super) fn create(path: &Path) -> io::Result<PlainStore> {
        let file = Arc::new(File::options().read(true).write(true).create_new(true).open(path)?);
        File::open(path.parent().unwrap_or(path))?.sync_all()?;
        let (appended, receiver) = channel::<LogFlushed<Types>>();
        let synced = file.clone();
        std::thread::spawn(move || {
            while let Ok(first) = receiver.recv() {
                let all = [first].into_iter().chain(receiver.try_iter()).collect::<Vec<_>>();
                let result = synced.sync_data().map_err(|error| error.kind());
                all.into_iter().for_each(|one| one.log_io_completed(result.map_err(io::Error::from)));
            }
        });
        Ok(PlainStore { file, index: Arc::default(), appended })
    }
}

impl RaftLogReader<Types> for PlainStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Raft<Vec<Entry<Types>>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let first = match range.start_bound() {
            Bound::Included(&first) => first,
            Bound::Excluded(&before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last + 1,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => u64::MAX,
        };
        let (mut at, ends) = {
            let index = self.index.lock().unwrap();
            let place = |number: u64| ((number.max(index.first) - index.first) as usize).min(index.ends.len());
            let start = place(first).checked_sub(1).map_or(index.start, |before| index.ends[before]);
            (start, index.ends[place(first)..place(end)].to_vec())
        };
        let Some(last) = ends.last() else { return Ok(Vec::new()) };
        let (start, mut bytes) = (at, vec![0; (last - at) as usize]);
        self.file.read_exact_at(&mut bytes, at).map_err(|error| StorageIOError::read_logs(&error))?;
        let mut entries = Vec::with_capacity(ends.len());
        for end in ends {
            let (header, entry) = bytes[(at - start) as usize..(end - start) as usize].split_at(HEADER);
            if header[4..] != crc32c::crc32c(entry).to_le_bytes() {
                return Err(StorageIOError::read_logs(&io::Error::from(io::ErrorKind::InvalidData)).into());
            }
            entries.push(rmp_serde::from_slice(entry).map_err(|error| StorageIOError::read_logs(&error))?);
            at = end;
        }
        Ok(entries)
    }
}

impl RaftLogStorage<Types> for PlainStore {
    type LogReader = PlainStore;

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Raft<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut index = self.index.lock().unwrap();
        let start = index.ends.last().copied().unwrap_or(index.start);
        let mut bytes = Vec::new();
        for entry in entries {
            let at = bytes.len();
            bytes.extend_from_slice(&[0; HEADER]);
            rmp_serde::encode::write_named(&mut bytes, &entry).map_err(|error| StorageIOError::write_logs(&error))?;
            let (header, record) = bytes[at..].split_at_mut(HEADER);
            header[..4].copy_from_slice(&(record.len() as u32).to_le_bytes());
            header[4..].copy_from_slice(&crc32c::crc32c(record).to_le_bytes());
            index.last = Some(entry.log_id);
            index.ends.push(start + bytes.len() as u64);
        }
        self.file.write_all_at(&bytes, start).map_err(|error| StorageIOError::write_logs(&error))?;
        self.appended.send(callback).expect("the thread runs while there is a store");
        Ok(())
    }

    async fn get_log_reader(&mut self) -> PlainStore {
        self.clone()
    }

    async fn get_log_state(&mut self) -> Raft<LogState<Types>> {
        let index = self.index.lock().unwrap();
        Ok(LogState { last_purged_log_id: index.purged, last_log_id: index.last.or(index.purged) })
    }

    async fn read_vote(&mut self) -> Raft<Option<Vote<u64>>> {
        Ok(self.index.lock().unwrap().vote)
    }

    // Votes and removals are rare, and not measured.
    async fn save_vote(&mut self, _: &Vote<u64>) -> Raft<()> {
        Err(StorageIOError::write_vote(&io::Error::from(io::ErrorKind::Unsupported)).into())
    }

    async fn truncate(&mut self, _: LogId<u64>) -> Raft<()> {
        Err(StorageIOError::write_logs(&io::Error::from(io::ErrorKind::Unsupported)).into())
    }

    async fn purge(&mut self, _: LogId<u64>) -> Raft<()> {
        Err(StorageIOError::write_logs(&io::Error::from(io::ErrorKind::Unsupported)).into())
    }
}
