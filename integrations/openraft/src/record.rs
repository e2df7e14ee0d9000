//! Records of the log, and their encoding.

use nowait::{Error, ErrorKind, Result};
use nowait_log::RECOVER;
use openraft::{LogId, NodeId, Vote};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// An entry: its index in 8 bytes, little-endian, then the encoded entry.
pub(crate) const ENTRY: u8 = 1;
/// A truncation: the index of the first entry removed, in 8 bytes, little-endian.
pub(crate) const TRUNCATION: u8 = 2;
/// An encoded [`State`], which replaces the previous one.
pub(crate) const STATE: u8 = 3;

/// Node state besides the entries. It is small, so each change stores all of it. The last record of
/// this kind is therefore complete, even if the log before it was removed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(bound = "")]
pub(crate) struct State<N: NodeId> {
    pub(crate) vote: Option<Vote<N>>,
    pub(crate) committed: Option<LogId<N>>,
    pub(crate) purged: Option<LogId<N>>,
}

impl<N: NodeId> Default for State<N> {
    fn default() -> Self {
        State { vote: None, committed: None, purged: None }
    }
}

impl<N: NodeId> State<N> {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        rmp_serde::to_vec_named(self).map_err(|error| unusable(format!("a vote cannot be encoded: {error}")))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<State<N>> {
        rmp_serde::from_slice(bytes).map_err(|error| unusable(format!("a vote cannot be decoded: {error}")))
    }
}

pub(crate) fn encode_entry(index: u64, entry: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = index.to_le_bytes().to_vec();
    rmp_serde::encode::write_named(&mut bytes, entry)
        .map_err(|error| unusable(format!("entry {index} cannot be encoded: {error}")))?;
    Ok(bytes)
}

/// Decodes an entry. Fails if it does not have the given index.
pub(crate) fn decode_entry<E: DeserializeOwned>(index: u64, bytes: &[u8]) -> Result<E> {
    match bytes.split_first_chunk() {
        Some((found, entry)) if u64::from_le_bytes(*found) == index => {
            rmp_serde::from_slice(entry).map_err(|error| unusable(format!("entry {index} cannot be decoded: {error}")))
        }
        _ => Err(unusable(format!("a record does not contain entry {index}, which was stored in it"))),
    }
}

/// Returns the index at the start of the record of an entry or of a truncation.
pub(crate) fn decode_index(bytes: &[u8]) -> Result<u64> {
    match bytes.first_chunk() {
        Some(index) => Ok(u64::from_le_bytes(*index)),
        None => Err(unusable("a record is too short for an index".into())),
    }
}

/// Returns the error of a record that cannot be decoded. The log verified the bytes, so they were
/// stored with another type of entry or of node.
fn unusable(text: String) -> Error {
    Error::new(RECOVER, ErrorKind::InvalidData).with_detail(text)
}
