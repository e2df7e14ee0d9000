//! Several buffers for one vectored transfer: any number of one type, or a few of different types.

use super::memory::{Erased, Memory, ReadBuffer, WriteBuffer, sealed::Sealed};

/// Buffers that a vectored read fills in order and returns with its result. Implemented for a `Vec`
/// or an array of [`ReadBuffer`]s, and for tuples of two to six of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of buffers that a vectored read can own",
    note = "pass a `Vec` or an array of buffers, or a tuple of two to six, such as `(header, body)`"
)]
pub trait ReadBuffers: Sealed + Send + Sync + Sized + 'static {
    #[doc(hidden)]
    fn into_room(self) -> Erased;
    /// Takes back what `into_room` gave, of which the first `n` bytes were read.
    #[doc(hidden)]
    fn from_room(memory: Erased, n: usize) -> Self;
}

/// Buffers that a vectored write takes in order and returns with its result. Implemented for a
/// `Vec` or an array of [`WriteBuffer`]s, and for tuples of two to six of them.
///
/// ```
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let file = nowait::File::create(dir.path().join("message")).wait()?;
/// let header = [0, 5];
/// let (n, (_header, body)) = file.write_vectored_at((header, "hello"), 0).wait()?;
/// assert_eq!((n, body), (7, "hello"));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of buffers that a vectored write can own",
    note = "pass a `Vec` or an array of buffers, or a tuple of two to six, such as `(header, body)`"
)]
pub trait WriteBuffers: Sealed + Send + Sync + Sized + 'static {
    #[doc(hidden)]
    fn into_memory(self) -> Erased;
    #[doc(hidden)]
    fn from_memory(memory: Erased) -> Self;
}

/// The parts of what an operation gives back, in their order, with the bytes that were read into
/// each.
struct Parts {
    parts: std::vec::IntoIter<Memory>,
    left: usize,
}

impl Parts {
    fn new(memory: Erased, n: usize) -> Parts {
        match memory.0 {
            Memory::Many(parts) => Parts { parts: parts.into_iter(), left: n },
            other => unreachable!("an operation gives back the memory it was given, not {other:?}"),
        }
    }

    fn next(&mut self) -> Option<(Erased, usize)> {
        let part = self.parts.next()?;
        let n = self.left.min(part.len());
        self.left -= n;
        Some((Erased(part), n))
    }

    fn read<B: ReadBuffer>(&mut self) -> Option<B> {
        self.next().map(|(part, n)| B::from_room(part, n))
    }

    fn written<B: WriteBuffer>(&mut self) -> Option<B> {
        self.next().map(|(part, _)| B::from_memory(part))
    }
}

#[cold]
fn too_few() -> ! {
    unreachable!("an operation gives back as many buffers as it was given")
}

impl<B: Sealed> Sealed for Vec<B> {}

impl<B: ReadBuffer> ReadBuffers for Vec<B> {
    fn into_room(self) -> Erased {
        Erased(Memory::Many(self.into_iter().map(|buffer| buffer.into_room().0).collect()))
    }
    fn from_room(memory: Erased, n: usize) -> Self {
        let mut parts = Parts::new(memory, n);
        std::iter::from_fn(|| parts.read()).collect()
    }
}

impl<B: WriteBuffer> WriteBuffers for Vec<B> {
    fn into_memory(self) -> Erased {
        Erased(Memory::Many(self.into_iter().map(|buffer| buffer.into_memory().0).collect()))
    }
    fn from_memory(memory: Erased) -> Self {
        let mut parts = Parts::new(memory, 0);
        std::iter::from_fn(|| parts.written()).collect()
    }
}

impl<B: Sealed, const N: usize> Sealed for [B; N] {}

impl<B: ReadBuffer, const N: usize> ReadBuffers for [B; N] {
    fn into_room(self) -> Erased {
        Erased(Memory::Many(self.map(|buffer| buffer.into_room().0).into()))
    }
    fn from_room(memory: Erased, n: usize) -> Self {
        let mut parts = Parts::new(memory, n);
        std::array::from_fn(|_| parts.read().unwrap_or_else(|| too_few()))
    }
}

impl<B: WriteBuffer, const N: usize> WriteBuffers for [B; N] {
    fn into_memory(self) -> Erased {
        Erased(Memory::Many(self.map(|buffer| buffer.into_memory().0).into()))
    }
    fn from_memory(memory: Erased) -> Self {
        let mut parts = Parts::new(memory, 0);
        std::array::from_fn(|_| parts.written().unwrap_or_else(|| too_few()))
    }
}

macro_rules! tuples {
    ($(($($part:ident)+))+) => {
        $(
            impl<$($part: Sealed),+> Sealed for ($($part,)+) {}

            impl<$($part: ReadBuffer),+> ReadBuffers for ($($part,)+) {
                fn into_room(self) -> Erased {
                    #[allow(non_snake_case)] // The names of the types serve for the values.
                    let ($($part,)+) = self;
                    Erased(Memory::Many(vec![$($part.into_room().0),+]))
                }
                fn from_room(memory: Erased, n: usize) -> Self {
                    let mut parts = Parts::new(memory, n);
                    ($(parts.read::<$part>().unwrap_or_else(|| too_few()),)+)
                }
            }

            impl<$($part: WriteBuffer),+> WriteBuffers for ($($part,)+) {
                fn into_memory(self) -> Erased {
                    #[allow(non_snake_case)]
                    let ($($part,)+) = self;
                    Erased(Memory::Many(vec![$($part.into_memory().0),+]))
                }
                fn from_memory(memory: Erased) -> Self {
                    let mut parts = Parts::new(memory, 0);
                    ($(parts.written::<$part>().unwrap_or_else(|| too_few()),)+)
                }
            }
        )+
    };
}

tuples! { (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::pooled::Buf;
    use super::*;

    #[test]
    fn buffers_of_different_types_come_back_in_their_order() {
        let written = (vec![1, 2], "abc", [7; 4], Arc::new(vec![8; 3]), b"xy");
        let memory = written.clone().into_memory();
        assert_eq!(memory.0.len(), 2 + 3 + 4 + 3 + 2);
        assert_eq!(<(Vec<u8>, &str, [u8; 4], Arc<Vec<u8>>, &[u8; 2])>::from_memory(memory), written);

        let memory = (Vec::with_capacity(4), [0; 4], Buf::zeroed(4), Vec::<u8>::with_capacity(8)).into_room();
        let room = memory.0.len();
        assert!(room >= 20);
        let (first, second, third, last) = <(Vec<u8>, [u8; 4], Buf, Vec<u8>)>::from_room(memory, 10);
        assert_eq!((first.len(), second, third.len(), last.len()), (4, [0; 4], 4, 0));

        let memory = [vec![1; 2], vec![2; 3]].into_memory();
        assert_eq!(<[Vec<u8>; 2]>::from_memory(memory), [vec![1; 2], vec![2; 3]]);
        let memory = vec![vec![1; 2], vec![2; 3]].into_room();
        assert_eq!(Vec::<Vec<u8>>::from_room(memory, 5), [vec![1; 2], vec![2; 3]]);
    }
}
