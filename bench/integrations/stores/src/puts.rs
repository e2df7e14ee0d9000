//! Puts: one large object, and many small ones.

use std::fs;
use std::io;
use std::path::Path as FilePath;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use nowait_bench::random::Random;
use nowait_bench::{Error, Result};
use nowait_measure::Work;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::runtime::Runtime;

use crate::{AT_A_TIME, Store, failed, in_a_task};

const OBJECTS: usize = 10_000;
const OBJECT_BYTES: usize = 4096;

/// One object of many blocks of 16 MiB, in one call.
pub(crate) struct Large<'a> {
    runtime: &'a Runtime,
    stores: &'a [Store],
    folder: &'a FilePath,
    payload: PutPayload,
}

impl<'a> Large<'a> {
    pub(crate) fn new(runtime: &'a Runtime, stores: &'a [Store], folder: &'a FilePath, bytes: u64, seed: u64) -> Self {
        const BLOCK: usize = 16 << 20;
        let mut random = Random::new(seed);
        let block: Bytes = (0..BLOCK / 8).flat_map(|_| random.number().to_le_bytes()).collect();
        let payload = (0..bytes / BLOCK as u64).map(|_| block.clone()).collect();
        Large { runtime, stores, folder, payload }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.join("put/large")
    }
}

impl Work for Large<'_> {
    /// What is there: compared before the timed rounds.
    type Answer = bool;

    fn prepare(&mut self, _: usize, _: u64) -> Result<()> {
        forget(self.folder)
    }

    fn run(&mut self, way: usize, round: u64) -> Result<(bool, u64)> {
        let (store, payload) = (self.stores[way].store.clone(), self.payload.clone());
        in_a_task(self.runtime, "put an object", async move { store.put(&Path::from("put/large"), payload).await })?;
        let bytes = self.payload.content_length() as u64;
        if round > 0 {
            return Ok((true, bytes));
        }
        let path = self.path();
        let found = fs::read(&path).map_err(|error| Error::io("read", &path, &error))?;
        let mut rest = &found[..];
        let blocks = self.payload.iter().all(|block| {
            let (begin, after) = rest.split_at(block.len().min(rest.len()));
            rest = after;
            begin == &block[..]
        });
        match blocks && rest.is_empty() {
            true => Ok((true, bytes)),
            false => Err(failed("find the object as it was put", &io::Error::from(io::ErrorKind::InvalidData))),
        }
    }
}

/// Ten thousand objects of 4 KiB, 32 calls at a time.
pub(crate) struct Small<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) stores: &'a [Store],
    pub(crate) folder: &'a FilePath,
}

impl Work for Small<'_> {
    /// Objects that are there.
    type Answer = usize;

    fn prepare(&mut self, _: usize, _: u64) -> Result<()> {
        forget(self.folder)
    }

    fn run(&mut self, way: usize, round: u64) -> Result<(usize, u64)> {
        let store = self.stores[way].store.clone();
        let block = Bytes::from(vec![7; OBJECT_BYTES]);
        in_a_task(self.runtime, "put objects", async move {
            let put = |number| {
                let (store, block) = (store.clone(), block.clone());
                async move { store.put(&Path::from(format!("put/{number}")), block.into()).await.map(drop) }
            };
            futures::stream::iter(0..OBJECTS).map(put).buffer_unordered(AT_A_TIME).try_collect::<()>().await
        })?;
        let bytes = (OBJECTS * OBJECT_BYTES) as u64;
        if round > 0 {
            return Ok((OBJECTS, bytes));
        }
        let dir = self.folder.join("put");
        let entries = fs::read_dir(&dir).map_err(|error| Error::io("list", &dir, &error))?;
        let whole = entries.flatten().filter(|entry| entry.metadata().is_ok_and(|at| at.len() == OBJECT_BYTES as u64));
        match whole.count() {
            OBJECTS => Ok((OBJECTS, bytes)),
            _ => Err(failed("find all objects that were put", &io::Error::from(io::ErrorKind::InvalidData))),
        }
    }
}

/// Removes what was put, and has all of it, and what was written before, on the disk.
fn forget(folder: &FilePath) -> Result<()> {
    let dir = folder.join("put");
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &dir, &error)),
        _ => {
            // The file system of the folder, and no other.
            let opened = fs::File::open(folder).map_err(|error| Error::io("open", folder, &error))?;
            rustix::fs::syncfs(&opened).map_err(|error| Error::io("sync", folder, &error.into()))
        }
    }
}
