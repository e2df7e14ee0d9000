//! Memory that an operation owns while it runs, of whatever type it came.

use std::sync::Arc;

use super::lent::Lent;
use super::part::Part;
use super::pooled::Buf;
use super::segments::Segments;

/// Memory that an operation owns while it runs. The public ways in and out are [`ReadBuffer`] and
/// the methods of `File`.
#[derive(Debug)]
pub(crate) enum Memory {
    None,
    Vec(Vec<u8>),
    /// Was empty, and is as long as its capacity while it is read into.
    Room(Vec<u8>),
    Buf(Buf),
    #[cfg(feature = "bytes")]
    BytesMut(bytes::BytesMut),
    #[cfg(feature = "bytes")]
    BytesRoom(bytes::BytesMut),
    Part(Part),
    Lent(Lent),
    Many(Vec<Memory>),
    /// Only to be written from, as are those below.
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
    SharedVec(Arc<Vec<u8>>),
    SharedBuf(Arc<Buf>),
    #[cfg(feature = "bytes")]
    Bytes(bytes::Bytes),
}

impl Memory {
    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Memory::None => 0,
            Memory::Vec(vec) | Memory::Room(vec) => vec.len(),
            Memory::Buf(buf) => buf.len,
            #[cfg(feature = "bytes")]
            Memory::BytesMut(bytes) | Memory::BytesRoom(bytes) => bytes.len(),
            Memory::Part(part) => part.len,
            Memory::Lent(lent) => lent.len(),
            Memory::Many(many) => many.iter().map(Memory::len).sum(),
            Memory::Static(bytes) => bytes.len(),
            Memory::Shared(bytes) => bytes.len(),
            Memory::SharedVec(bytes) => bytes.len(),
            Memory::SharedBuf(bytes) => bytes.len(),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => bytes.len(),
        }
    }

    /// Its destructor is a user's, who may do anything there (`Lent::new`, `bytes::Bytes::from_owner`).
    pub(crate) fn runs_code_of_users(&self) -> bool {
        match self {
            #[cfg(feature = "bytes")]
            Memory::Bytes(_) => true,
            Memory::Lent(_) => true,
            Memory::Part(part) => part.runs_code_of_users(),
            Memory::Many(many) => many.iter().any(Memory::runs_code_of_users),
            _ => false,
        }
    }

    /// Appends the segments. The pointers stay valid while this `Memory` lives, wherever it is
    /// moved. What is only to be written from must not be written to: [`ReadBuffer`] keeps it out
    /// of reads.
    #[inline]
    pub(crate) fn segments(&mut self, out: &mut Segments) {
        match self {
            Memory::None => {}
            Memory::Vec(vec) | Memory::Room(vec) => out.push(vec.as_mut_ptr(), vec.len()),
            Memory::Buf(buf) => out.push(buf.start.as_ptr(), buf.len),
            #[cfg(feature = "bytes")]
            Memory::BytesMut(bytes) | Memory::BytesRoom(bytes) => out.push(bytes.as_mut_ptr(), bytes.len()),
            Memory::Part(part) => out.push(part.pointer(), part.len),
            Memory::Lent(lent) => out.push(lent.pointer(), lent.len()),
            Memory::Many(many) => many.iter_mut().for_each(|memory| memory.segments(out)),
            Memory::Static(bytes) => out.push(bytes.as_ptr().cast_mut(), bytes.len()),
            Memory::Shared(bytes) => out.push(bytes.as_ptr().cast_mut(), bytes.len()),
            Memory::SharedVec(bytes) => out.push(bytes.as_ptr().cast_mut(), bytes.len()),
            Memory::SharedBuf(bytes) => out.push(bytes.start.as_ptr(), bytes.len),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => out.push(bytes.as_ptr().cast_mut(), bytes.len()),
        }
    }
}
