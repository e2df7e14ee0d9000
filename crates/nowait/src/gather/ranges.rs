//! Forms of the ranges of a gather.

use std::borrow::Cow;
use std::ops::Range;

use super::Extent;

mod sealed {
    pub trait Sealed {}
}

/// Ranges of a [`gather`](crate::File::gather): a slice, an array or a `Vec`, owned or borrowed.
/// The elements are pairs of offset and length in bytes, `(u64, usize)`, or of type `Range<u64>`. A
/// pair is used as it is; a `Range<u64>` is converted. A range that ends before it starts is empty.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of file ranges",
    note = "pass a slice, array or `Vec` of `(offset: u64, length: usize)` or of `Range<u64>`"
)]
pub trait Ranges<'f>: sealed::Sealed {
    #[doc(hidden)]
    fn into_extents(self) -> Cow<'f, [Extent]>;
}

fn extents(ranges: &[Range<u64>]) -> Cow<'static, [Extent]> {
    let length = |range: &Range<u64>| usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
    ranges.iter().map(|range| (range.start, length(range))).collect()
}

macro_rules! ranges {
    ($([$($size:ident)?] $type:ty, $self:ident => $extents:expr;)+) => {
        $(
            impl$(<const $size: usize>)? sealed::Sealed for $type {}
            impl<'f $(, const $size: usize)?> Ranges<'f> for $type {
                fn into_extents($self) -> Cow<'f, [Extent]> {
                    $extents
                }
            }
        )+
    };
}

ranges! {
    [] Vec<Extent>, self => Cow::Owned(self);
    [N] [Extent; N], self => Cow::Owned(self.into());
    [] Vec<Range<u64>>, self => extents(&self);
    [N] [Range<u64>; N], self => extents(&self);
    [] &[Range<u64>], self => extents(self);
    [] &Vec<Range<u64>>, self => extents(self);
    [N] &[Range<u64>; N], self => extents(self);
}

macro_rules! borrowed {
    ($([$($size:ident)?] $type:ty;)+) => {
        $(
            impl$(<const $size: usize>)? sealed::Sealed for &$type {}
            impl<'f $(, const $size: usize)?> Ranges<'f> for &'f $type {
                fn into_extents(self) -> Cow<'f, [Extent]> {
                    Cow::Borrowed(self)
                }
            }
        )+
    };
}

borrowed! {
    [] [Extent];
    [] Vec<Extent>;
    [N] [Extent; N];
}

impl sealed::Sealed for Cow<'_, [Extent]> {}
impl<'f> Ranges<'f> for Cow<'f, [Extent]> {
    fn into_extents(self) -> Cow<'f, [Extent]> {
        self
    }
}
