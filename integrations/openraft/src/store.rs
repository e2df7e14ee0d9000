//! The log storage, and its readers.

use std::fmt::{self, Debug};
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nowait::{Error, ErrorKind};
use nowait_log::{Log, Options, RECOVER, Reader, Retention};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    LogId, LogState, NodeId, OptionalSend, RaftLogId, RaftLogReader, RaftTypeConfig, StorageError, StorageIOError, Vote,
};

use serde::de::DeserializeOwned;

use crate::entries::{Entries, Place};
use crate::record::{self, State};

/// Bytes of entries after which [`RaftLogReader::limited_get_log_entries`] returns.
const LIMITED_BYTES: usize = 4 << 20;
/// Maximum number of entries that it returns: a follower may lag by millions of entries.
const LIMITED_ENTRIES: usize = 16 << 10;
/// Maximum number of records that a reader skips to reach an entry. Over a longer distance, a seek
/// is cheaper.
const PASSED_MAX: u64 = 1024;

/// Raft log and vote of one node, in the directory of a log of `nowait-log`.
///
/// The crate's documentation describes its promises. [`LogStore::open`] returns one; pass it to
/// [`openraft::Raft::new`].
pub struct LogStore<C: RaftTypeConfig>(LogStoreReader<C>);

/// Reader of a [`LogStore`]. It can read while entries are appended.
pub struct LogStoreReader<C: RaftTypeConfig> {
    store: Arc<Store<C>>,
    cursor: Mutex<Cursor>,
}

struct Store<C: RaftTypeConfig> {
    log: Log,
    contents: Mutex<Contents<C>>,
}

struct Contents<C: RaftTypeConfig> {
    entries: Entries,
    state: State<C::NodeId>,
}

impl<C: RaftTypeConfig> Default for Contents<C> {
    fn default() -> Self {
        Contents { entries: Entries::default(), state: State::default() }
    }
}

impl<C: RaftTypeConfig> LogStore<C> {
    /// Opens the store in `dir`, and reads all of it. [`Options::create`] creates a store that does
    /// not exist: set it only when the node is installed, since a node that lost its vote must not
    /// vote again. Two options have no effect: [`Options::retain`], since [`RaftLogStorage::purge`]
    /// decides what is removed, and [`Options::salvage`].
    ///
    /// # Errors
    /// Those of [`Log::open`]; [`ErrorKind::Unsupported`] if the log contains a kind of record that
    /// this version of the crate does not write; [`ErrorKind::InvalidData`] if a record cannot be
    /// decoded, such as a vote of another type of node ID.
    pub async fn open(dir: impl AsRef<Path>, options: &Options) -> nowait::Result<LogStore<C>> {
        let options = options.clone().retain(Retention::all()).salvage(false);
        let (log, recovery) = Log::open(dir, &options).await?;
        let mut contents = Contents::<C>::default();
        let mut reader = log.reader(recovery.first_lsn);
        while let Some(record) = reader.next().await? {
            contents.replay(record.lsn, record.kind, record.bytes).map_err(|error| error.at(log.path()))?;
        }
        Ok(LogStore(LogStoreReader::new(Arc::new(Store { log, contents: Mutex::new(contents) }))))
    }

    /// Returns the log, for its counters, and to close it after [`openraft::Raft::shutdown`]. Do
    /// not append to it.
    pub fn log(&self) -> &Log {
        &self.0.store.log
    }

    /// Appends a record, and waits until it is durable. Returns its LSN.
    async fn save(&self, kind: u8, bytes: &[u8]) -> nowait::Result<u64> {
        self.log().append_kind(kind, bytes).await?.await
    }

    fn contents(&self) -> MutexGuard<'_, Contents<C>> {
        self.0.store.contents()
    }
}

impl<C: RaftTypeConfig> Contents<C> {
    fn replay(&mut self, lsn: u64, kind: u8, bytes: &[u8]) -> nowait::Result<()> {
        match kind {
            record::ENTRY => self.entries.add(record::decode_index(bytes)?, lsn),
            record::TRUNCATION => self.entries.truncate(record::decode_index(bytes)?),
            record::STATE => {
                self.state = State::decode(bytes)?;
                self.purge();
            }
            kind => {
                let text = format!("record {lsn} has kind {kind}: this is no Raft log, or a later version wrote it");
                return Err(Error::new(RECOVER, ErrorKind::Unsupported).with_detail(text));
            }
        }
        Ok(())
    }

    /// Removes the entries up to the purged log ID.
    fn purge(&mut self) {
        if let Some(purged) = &self.state.purged {
            self.entries.purge(purged.index);
        }
    }
}

impl<C: RaftTypeConfig> Store<C> {
    fn contents(&self) -> MutexGuard<'_, Contents<C>> {
        // No change panics half way, so the contents are consistent even if the lock is poisoned.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: RaftTypeConfig> RaftLogStorage<C> for LogStore<C> {
    type LogReader = LogStoreReader<C>;

    async fn get_log_state(&mut self) -> Result<LogState<C>, StorageError<C::NodeId>> {
        let (last, purged) = {
            let contents = self.contents();
            (contents.entries.last_index(), contents.state.purged.clone())
        };
        let entry = match last {
            Some(index) => self.try_get_log_entries(index..=index).await?.pop(),
            None => None,
        };
        let last_log_id = entry.map(|entry| entry.get_log_id().clone()).or(purged.clone());
        Ok(LogState { last_purged_log_id: purged, last_log_id })
    }

    async fn get_log_reader(&mut self) -> LogStoreReader<C> {
        LogStoreReader::new(self.0.store.clone())
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let state = State { vote: Some(vote.clone()), ..self.contents().state.clone() };
        let saved = async { self.save(record::STATE, &state.encode()?).await };
        saved.await.map_err(|error| StorageIOError::write_vote(&error))?;
        self.contents().state = state;
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<C::NodeId>>, StorageError<C::NodeId>> {
        Ok(self.contents().state.vote.clone())
    }

    async fn save_committed(&mut self, committed: Option<LogId<C::NodeId>>) -> Result<(), StorageError<C::NodeId>> {
        let state = State { committed, ..self.contents().state.clone() };
        // Does not wait for durability: after a crash an earlier value is also valid. In the log,
        // the record follows all entries up to the committed one, so it is never durable without
        // them.
        let appended = async { self.log().append_kind(record::STATE, &state.encode()?).await };
        drop(appended.await.map_err(write_error)?);
        self.contents().state = state;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<C::NodeId>>, StorageError<C::NodeId>> {
        Ok(self.contents().state.committed.clone())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<C>) -> Result<(), StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut last = None;
        for entry in entries {
            let index = entry.get_log_id().index;
            let record = record::encode_entry(index, &entry).map_err(write_error)?;
            let ticket = self.log().append_kind(record::ENTRY, &record).await.map_err(write_error)?;
            let durable_lsn = self.log().durable_lsn();
            self.contents().entries.append(index, ticket.lsn(), record.into(), durable_lsn);
            last = Some(ticket);
        }
        match last {
            // A durable record implies that all earlier records are durable.
            Some(last) => {
                last.on_durable(|result| callback.log_io_completed(result.map(drop).map_err(io::Error::from)))
            }
            None => callback.log_io_completed(Ok(())),
        }
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        if self.contents().entries.last_index().is_none_or(|last| last < log_id.index) {
            return Ok(());
        }
        self.save(record::TRUNCATION, &log_id.index.to_le_bytes()).await.map_err(write_error)?;
        self.contents().entries.truncate(log_id.index);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let state = self.contents().state.clone();
        if state.purged.as_ref().is_some_and(|purged| log_id.index <= purged.index) {
            return Ok(());
        }
        let state = State { purged: Some(log_id), ..state };
        let saved = async { self.save(record::STATE, &state.encode()?).await };
        let state_lsn = saved.await.map_err(write_error)?;
        let first_lsn = {
            let mut contents = self.contents();
            contents.state = state;
            contents.purge();
            contents.entries.first_lsn()
        };
        // Keeps the record of this state, which follows those of all entries.
        self.log().truncate_prefix(first_lsn.unwrap_or(state_lsn));
        Ok(())
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogStore<C> {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<C::Entry>, StorageError<C::NodeId>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.0.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.0.limited_get_log_entries(start, end).await
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogStoreReader<C> {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<C::Entry>, StorageError<C::NodeId>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.read(indexes(&range), usize::MAX, usize::MAX).await.map_err(read_error)
    }

    /// Returns the first entries of a range: at least one, and at most 16,384 or about 4 MiB,
    /// whichever is less.
    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.read(start..end, LIMITED_ENTRIES, LIMITED_BYTES).await.map_err(read_error)
    }
}

impl<C: RaftTypeConfig> LogStoreReader<C> {
    fn new(store: Arc<Store<C>>) -> LogStoreReader<C> {
        let reader = store.log.reader(store.log.durable_lsn() + 1);
        LogStoreReader { store, cursor: Mutex::new(Cursor { reader, next_lsn: None }) }
    }

    /// Returns up to `count_max` entries from the start of a range of indexes. Stops once they have
    /// `bytes_max` bytes.
    async fn read(&mut self, indexes: Range<u64>, count_max: usize, bytes_max: usize) -> nowait::Result<Vec<C::Entry>> {
        loop {
            let places = self.store.contents().entries.places(indexes.clone(), count_max);
            if let Some(entries) = self.read_places(places, bytes_max).await? {
                return Ok(entries);
            }
        }
    }

    /// Returns the entries at these places; None if a purge freed one of their records meanwhile.
    /// The rest of the range may have been replaced before the purge.
    async fn read_places(&mut self, places: Vec<Place>, bytes_max: usize) -> nowait::Result<Option<Vec<C::Entry>>> {
        let cursor = self.cursor.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut entries = Vec::new();
        let mut bytes = 0;
        for Place { index, lsn, record } in places {
            if bytes >= bytes_max {
                break;
            }
            let found = match record {
                Some(record) => Ok((record.len(), record::decode_entry(index, &record)?)),
                None => cursor.read(self.store.log.path(), index, lsn).await,
            };
            match found {
                Ok((length, entry)) => {
                    entries.push(entry);
                    bytes += length;
                }
                Err(error) => {
                    let is_changed = self.store.contents().entries.lsn(index) != Some(lsn);
                    return if error.kind() == ErrorKind::NoSuchRecord && is_changed { Ok(None) } else { Err(error) };
                }
            }
        }
        Ok(Some(entries))
    }
}

/// Reader of the log, with its position.
struct Cursor {
    reader: Reader,
    /// LSN of the next record; None after an error.
    next_lsn: Option<u64>,
}

impl Cursor {
    /// Reads an entry from its record. Returns the record's length, and the entry.
    async fn read<E: DeserializeOwned>(&mut self, path: &Path, index: u64, lsn: u64) -> nowait::Result<(usize, E)> {
        let is_near = self.next_lsn.take().is_some_and(|next| next <= lsn && lsn - next <= PASSED_MAX);
        if is_near {
            match self.find(path, index, lsn).await {
                // A purge may have removed records between the cursor and this one.
                Err(error) if error.kind() == ErrorKind::NoSuchRecord => {}
                found => return found,
            }
        }
        self.reader.seek(lsn);
        self.find(path, index, lsn).await
    }

    /// Reads forward to the record.
    async fn find<E: DeserializeOwned>(&mut self, path: &Path, index: u64, lsn: u64) -> nowait::Result<(usize, E)> {
        loop {
            match self.reader.next().await? {
                Some(passed) if passed.lsn < lsn => {}
                Some(record) if record.lsn == lsn => {
                    let entry = record::decode_entry(index, record.bytes)?;
                    self.next_lsn = Some(lsn + 1);
                    return Ok((record.bytes.len(), entry));
                }
                _ => {
                    let text = format!("record {lsn}, which is entry {index}, was lost");
                    return Err(Error::new(RECOVER, ErrorKind::Damaged).at(path).with_detail(text));
                }
            }
        }
    }
}

fn indexes(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

fn read_error<N: NodeId>(error: Error) -> StorageError<N> {
    StorageIOError::read_logs(&error).into()
}

fn write_error<N: NodeId>(error: Error) -> StorageError<N> {
    StorageIOError::write_logs(&error).into()
}

impl<C: RaftTypeConfig> Debug for LogStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogStore").field(self.log()).finish()
    }
}

impl<C: RaftTypeConfig> Debug for LogStoreReader<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogStoreReader").field(&self.store.log).finish()
    }
}
