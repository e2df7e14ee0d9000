//! The tests of `openraft::testing::Suite`, one by one, on the library's log storage.

#![cfg(test)]

use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use nowait_openraft::{LogStore, Options};
use openraft::storage::RaftStateMachine;
use openraft::testing::{StoreBuilder, Suite};
use openraft::{
    BasicNode, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError,
    StoredMembership,
};
use tempfile::TempDir;

openraft::declare_raft_types!(Types: D = String, R = ());

type Meta = SnapshotMeta<u64, BasicNode>;
type Result<T> = std::result::Result<T, StorageError<u64>>;
type Tests = Suite<Types, LogStore<Types>, StateMachine, Builder, TempDir>;

struct Builder;

impl StoreBuilder<Types, LogStore<Types>, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore<Types>, StateMachine)> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let options = Options::new().create(true).segment_bytes(1 << 20);
        let store = LogStore::open(dir.path().join("raft"), &options).await.expect("a new store");
        Ok((dir, store, StateMachine::default()))
    }
}

/// State machine without a state, for tests that need one beside the log.
#[derive(Clone, Default)]
struct StateMachine(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    applied: Meta,
    snapshot: Option<Meta>,
}

impl StateMachine {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn snapshot(meta: Meta) -> Snapshot<Types> {
    Snapshot { meta, snapshot: Box::default() }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>> {
        Ok(snapshot(self.with(|state| state.snapshot.insert(state.applied.clone()).clone())))
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotBuilder = StateMachine;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>)> {
        Ok(self.with(|state| (state.applied.last_log_id, state.applied.last_membership.clone())))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let apply = |entry: Entry<Types>| {
            self.with(|State { applied, .. }| {
                applied.last_log_id = Some(entry.log_id);
                if let EntryPayload::Membership(membership) = entry.payload {
                    applied.last_membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            })
        };
        Ok(entries.into_iter().map(apply).collect())
    }

    async fn get_snapshot_builder(&mut self) -> StateMachine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(&mut self, meta: &Meta, _snapshot: Box<Cursor<Vec<u8>>>) -> Result<()> {
        self.with(|state| *state = State { applied: meta.clone(), snapshot: Some(meta.clone()) });
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>> {
        Ok(self.with(|state| state.snapshot.clone()).map(snapshot))
    }
}

fn run(test: impl AsyncFnOnce(Builder) -> Result<()>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(test(Builder)).expect("openraft's test");
}

macro_rules! tests {
    ($($test:ident)*) => {
        $(#[test]
        fn $test() {
            run(async |builder: Builder| {
                let (_dir, store, state_machine) = builder.build().await?;
                Tests::$test(store, state_machine).await
            });
        })*
    };
}

// `suite.py` checks that the list has all that `Suite::test_all` runs.
tests! {
    last_membership_in_log_initial
    last_membership_in_log
    last_membership_in_log_multi_step
    get_membership_initial
    get_membership_from_log_and_empty_sm
    get_membership_from_empty_log_and_sm
    get_membership_from_log_le_sm_last_applied
    get_membership_from_log_gt_sm_last_applied_1
    get_membership_from_log_gt_sm_last_applied_2
    get_initial_state_without_init
    get_initial_state_membership_from_log_and_sm
    get_initial_state_with_state
    get_initial_state_last_log_gt_sm
    get_initial_state_last_log_lt_sm
    get_initial_state_log_ids
    get_initial_state_re_apply_committed
    save_vote
    get_log_entries
    limited_get_log_entries
    try_get_log_entry
    initial_logs
    get_log_state
    get_log_id
    last_id_in_log
    last_applied_state
    purge_logs_upto_0
    purge_logs_upto_5
    purge_logs_upto_20
    delete_logs_since_11
    delete_logs_since_0
    append_to_log
    snapshot_meta
    apply_single
    apply_multiple
}

#[test]
fn transfer_snapshot() {
    run(async |builder: Builder| Tests::transfer_snapshot(&builder).await);
}
