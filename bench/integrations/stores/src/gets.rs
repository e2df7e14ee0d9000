//! Gets of one large object: many small ranges, and all of it.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path as FilePath;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use nowait_bench::random::Random;
use nowait_bench::{Error, Result};
use nowait_measure::{Files, Run, State, Work};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;

use crate::{AT_A_TIME, Store, in_a_task};

const RANGES: u64 = 4000;
const RANGE_BYTES: u64 = 4096;

fn object() -> Path {
    Path::from("objects/large")
}

/// Makes the object, of bytes that no storage compresses.
pub(crate) fn make(folder: &FilePath, bytes: u64, run: &mut Run) -> Result<Files> {
    let (dir, path) = (folder.join("objects"), folder.join("objects/large"));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(&dir)?;
        let (mut file, mut random) = (File::create_new(&path)?, Random::new(run.seed()));
        let mut block = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.number().to_le_bytes()));
            file.write_all(&block)?;
        }
        file.sync_all()
    };
    write().map_err(|error| Error::io("write", &path, &error))?;
    run.describe_files(bytes, "an object made for this run, random data, written and synced");
    Files::below(&[&dir])
}

/// Ranges of 4 KiB at random places, of which no two are one.
pub(crate) struct Ranges<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) stores: &'a [Store],
    pub(crate) files: &'a Files,
    pub(crate) state: State,
    pub(crate) bytes: u64,
    pub(crate) seed: u64,
}

impl Work for Ranges<'_> {
    type Answer = Vec<Bytes>;

    fn prepare(&mut self, _: usize, _: u64) -> Result<()> {
        self.files.make(self.state)
    }

    fn run(&mut self, way: usize, round: u64) -> Result<(Vec<Bytes>, u64)> {
        let places = Random::of(self.seed, round).permutation(self.bytes / RANGE_BYTES).into_iter();
        let ranges = places.take(RANGES as usize).map(|place| place * RANGE_BYTES..(place + 1) * RANGE_BYTES);
        let ranges: Vec<_> = ranges.collect();
        let Store { store, apart, .. } = &self.stores[way];
        let (store, apart) = (store.clone(), *apart);
        let got = in_a_task(self.runtime, "get ranges", async move {
            if !apart {
                return store.get_ranges(&object(), &ranges).await;
            }
            let get = |range| {
                let store = store.clone();
                async move { store.get_range(&object(), range).await }
            };
            futures::stream::iter(ranges).map(get).buffered(AT_A_TIME).try_collect().await
        })?;
        Ok((got, RANGES * RANGE_BYTES))
    }
}

/// All of the object, a piece after the other, which are counted; hashed before the timed rounds.
pub(crate) struct Streamed<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) stores: &'a [Store],
    pub(crate) files: &'a Files,
    pub(crate) state: State,
}

impl Work for Streamed<'_> {
    type Answer = (u64, u64);

    fn prepare(&mut self, _: usize, _: u64) -> Result<()> {
        self.files.make(self.state)
    }

    fn run(&mut self, way: usize, round: u64) -> Result<((u64, u64), u64)> {
        let store = self.stores[way].store.clone();
        let counted = in_a_task(self.runtime, "get the object", async move {
            let mut pieces = store.get(&object()).await?.into_stream();
            let (mut length, mut hasher) = (0, Contents::default());
            while let Some(piece) = pieces.try_next().await? {
                length += piece.len() as u64;
                if round == 0 {
                    hasher.add(&piece);
                }
            }
            Ok((length, hasher.hash()))
        })?;
        Ok((counted, counted.0))
    }
}

/// Hash of bytes that come in pieces, whatever the pieces.
#[derive(Default)]
struct Contents {
    hasher: DefaultHasher,
    rest: Vec<u8>,
}

impl Contents {
    const BLOCK: usize = 64 << 10;

    fn add(&mut self, piece: &[u8]) {
        self.rest.extend_from_slice(piece);
        let whole = self.rest.len() / Self::BLOCK * Self::BLOCK;
        self.rest.drain(..whole).as_slice().chunks(Self::BLOCK).for_each(|block| block.hash(&mut self.hasher));
    }

    fn hash(mut self) -> u64 {
        self.rest.hash(&mut self.hasher);
        self.hasher.finish()
    }
}
