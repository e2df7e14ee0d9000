//! Memory that an operation owns while it runs, and the types of buffers that callers pass in and
//! get back.

use std::convert::identity;
use std::sync::Arc;

use super::cursor::TransferCursor;
use super::lent::Lent;
use super::part::Part;
use super::pooled::Buf;

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

    /// Adds its segments to a cursor. The pointers stay valid while this `Memory` lives, wherever it is
    /// moved. What is only to be written from must not be written to: [`ReadBuffer`] keeps it out
    /// of reads.
    #[inline]
    pub(crate) fn segments(&mut self, out: &mut TransferCursor) {
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

pub(super) mod sealed {
    pub trait Sealed {}
}

/// Buffer that a read takes and returns with its result. Implemented for `Vec<u8>`, `Box<[u8]>`,
/// `[u8; N]` (moved to the heap meanwhile), [`Buf`], [`Lent`] memory of any other owner, and, with
/// the `bytes` feature, `bytes::BytesMut`.
///
/// The buffer determines how many bytes `File::read_at` requests:
///
/// * A buffer that is not empty is overwritten from its start up to its length, as by std's
///   positioned reads. Its length does not change. Spare capacity is not used.
/// * An empty `Vec<u8>` or `BytesMut` is filled up to its capacity. Its length is then the number
///   of bytes read. So `Vec::with_capacity(n)` reads up to `n` bytes.
/// * A buffer without capacity (`Vec::new()`, an empty `Box<[u8]>` or [`Buf`]) requests nothing:
///   the read returns 0 at any offset.
///
/// So 0 means the end of the file, unless the buffer had no capacity. A cleared buffer keeps its
/// capacity and reads up to it. To read an exact number of bytes, set the length of the buffer to
/// it. If the number is zero, skip the read.
///
/// Uninitialised memory is zeroed before the kernel writes to it. `File::read_range` avoids that
/// cost.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that a read can own",
    note = "pass a `Vec<u8>`, a `Box<[u8]>` or a `nowait::Buf`; for a borrowed slice, call `read_into`"
)]
pub trait ReadBuffer: sealed::Sealed + AsRef<[u8]> + Send + Sync + Sized + 'static {
    #[doc(hidden)]
    fn into_memory(self) -> Erased;
    #[doc(hidden)]
    fn from_memory(memory: Erased) -> Self;
    /// The memory that a read may fill.
    #[doc(hidden)]
    #[inline]
    fn into_room(self) -> Erased {
        self.into_memory()
    }
    /// Undoes `into_room`, after the first `n` bytes were read.
    #[doc(hidden)]
    #[inline]
    fn from_room(memory: Erased, _n: usize) -> Self {
        Self::from_memory(memory)
    }
}

/// Buffer that a write takes and returns with its result. Implemented for every [`ReadBuffer`], for
/// `&'static [u8]`, `&'static [u8; N]`, `&'static str`, `Arc<[u8]>`, `Arc<Vec<u8>>`, `Arc<Buf>` and
/// `String`, and, with the `bytes` feature, for `bytes::Bytes`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that a write can own",
    note = "pass a `Vec<u8>`, a `Box<[u8]>`, a `&'static [u8]`, an `Arc<[u8]>` or a `nowait::Buf`; for a borrowed slice, call `write_from`"
)]
pub trait WriteBuffer: sealed::Sealed + Send + Sync + Sized + 'static {
    #[doc(hidden)]
    fn into_memory(self) -> Erased;
    #[doc(hidden)]
    fn from_memory(memory: Erased) -> Self;
}

/// Buffer with its type erased while an operation owns it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Erased(pub(crate) Memory);

impl sealed::Sealed for Erased {}

impl WriteBuffer for Erased {
    fn into_memory(self) -> Erased {
        self
    }
    fn from_memory(memory: Erased) -> Self {
        memory
    }
}

macro_rules! buffer {
    ($trait:ident, $type:ty, $variant:ident, $into:expr, $back:expr $(, $room:ident)? $(; const $size:ident)?) => {
        impl$(<const $size: usize>)? $trait for $type {
            $(
                #[inline]
                fn into_room(mut self) -> Erased {
                    if !self.is_empty() || self.capacity() == 0 {
                        return ReadBuffer::into_memory(self);
                    }
                    self.resize(self.capacity(), 0);
                    Erased(Memory::$room(self))
                }
                #[inline]
                fn from_room(memory: Erased, n: usize) -> Self {
                    match memory.0 {
                        Memory::$room(mut buffer) => {
                            buffer.truncate(n);
                            buffer
                        }
                        other => ReadBuffer::from_memory(Erased(other)),
                    }
                }
            )?
            #[inline]
            fn into_memory(self) -> Erased {
                Erased(Memory::$variant($into(self)))
            }
            #[inline]
            fn from_memory(memory: Erased) -> Self {
                match memory.0 {
                    Memory::$variant(buffer) => $back(buffer),
                    other => unreachable!("an operation gives back the memory it was given, not {other:?}"),
                }
            }
        }
    };
}

macro_rules! read_and_write_buffer {
    ($type:ty, $variant:ident, $into:expr, $back:expr $(, $room:ident)?) => {
        impl sealed::Sealed for $type {}
        buffer!(ReadBuffer, $type, $variant, $into, $back $(, $room)?);
        buffer!(WriteBuffer, $type, $variant, $into, $back);
    };
}

macro_rules! write_buffer {
    ($type:ty, $variant:ident, $into:expr, $back:expr $(; const $size:ident)?) => {
        impl$(<const $size: usize>)? sealed::Sealed for $type {}
        buffer!(WriteBuffer, $type, $variant, $into, $back $(; const $size)?);
    };
}

read_and_write_buffer!(Vec<u8>, Vec, identity, identity, Room);
// Converted to a `Vec`: a `Box` may not be moved while a pointer into it is in use, a `Vec` may. Neither
// conversion allocates.
read_and_write_buffer!(Box<[u8]>, Vec, <[u8]>::into_vec, Vec::into_boxed_slice);
read_and_write_buffer!(Buf, Buf, identity, identity);
read_and_write_buffer!(Lent, Lent, identity, identity);
// An array has its bytes within itself, and they would move with it.
impl<const N: usize> sealed::Sealed for [u8; N] {}
buffer!(ReadBuffer, [u8; N], Vec, |bytes: Self| bytes.to_vec(), |bytes: Vec<u8>| *as_array(&bytes); const N);
buffer!(WriteBuffer, [u8; N], Vec, |bytes: Self| bytes.to_vec(), |bytes: Vec<u8>| *as_array(&bytes); const N);
#[cfg(feature = "bytes")]
read_and_write_buffer!(bytes::BytesMut, BytesMut, identity, identity, BytesRoom);
write_buffer!(&'static [u8], Static, identity, identity);
write_buffer!(&'static [u8; N], Static, |bytes: Self| bytes.as_slice(), as_array; const N);
write_buffer!(&'static str, Static, str::as_bytes, |bytes| std::str::from_utf8(bytes).unwrap_or_default());
write_buffer!(Arc<Vec<u8>>, SharedVec, identity, identity);
write_buffer!(Arc<[u8]>, Shared, identity, identity);
write_buffer!(Arc<Buf>, SharedBuf, identity, identity);
// The bytes come back unchanged, and so still are text.
write_buffer!(String, Vec, String::into_bytes, |bytes| String::from_utf8(bytes).unwrap_or_default());
#[cfg(feature = "bytes")]
write_buffer!(bytes::Bytes, Bytes, identity, identity);

/// The bytes of an array that was given as a buffer.
fn as_array<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    match bytes.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("an operation gives back the memory it was given, not {} bytes", bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_type_comes_back_as_itself() {
        fn round_trip<B: ReadBuffer + AsRef<[u8]>>(buffer: B) {
            let len = buffer.as_ref().len();
            let mut memory = buffer.into_memory();
            let mut cursor = TransferCursor::at(0);
            memory.0.segments(&mut cursor);
            assert_eq!(cursor.left, len);
            assert_eq!(B::from_memory(memory).as_ref().len(), len);
        }
        round_trip(vec![0u8; 10]);
        round_trip(vec![0u8; 10].into_boxed_slice());
        round_trip(Buf::zeroed(10));
        round_trip(Lent::new(vec![0u8; 10]));
        round_trip(Vec::new());
        #[cfg(feature = "bytes")]
        round_trip(bytes::BytesMut::zeroed(10));
    }
}
