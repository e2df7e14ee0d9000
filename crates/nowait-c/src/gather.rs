//! Gathers: many ranges of a file in one call.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use nowait::{Exceptions, File, Lent};

use crate::border::{many, many_mut, status};
use crate::failure::{Failure, Result};
use crate::file::{FILES, FileHandle};

/// A range of a file, in bytes. The layout is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Offset of the range in the file.
    pub offset: u64,
    /// Length of the range.
    pub length: u64,
}

/// Reads `ranges_count` ranges into `output`, one after the other in the given order, and waits for
/// all of them. Range i begins at the sum of the preceding lengths. Ranges may be unsorted,
/// overlap, or be empty. Cached ranges are copied at once. The others are read with many reads
/// in flight; one read covers neighbouring ranges.
///
/// If `results` is not NULL, it receives for each range the number of bytes read, or a negative
/// errno. The number is less than the length if the file ends within the range. Bytes of `output`
/// that were not read are zero.
///
/// Returns 0 if every range is complete. Otherwise returns the negative errno of the first
/// incomplete range, -ENODATA if the file ends within it; the other ranges were still read. Nothing
/// was read, and `results` is unchanged, after -EBADF, -EFAULT, -EINVAL, or -ENOBUFS:
/// `output_bytes` is less than the sum of the lengths. Threads: any.
///
/// # Safety
/// `ranges` points to `ranges_count` ranges, `output` to `output_bytes` bytes, `results` is NULL or
/// points to `ranges_count` elements; nothing else uses `output` and `results` during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_gather(
    file: FileHandle,
    ranges: *const Range,
    ranges_count: usize,
    output: *mut c_void,
    output_bytes: usize,
    results: *mut i64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (ranges, output) =
            unsafe { (many(ranges, ranges_count, "ranges")?, many_mut(output.cast(), output_bytes, "output")?) };
        let results = match results.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { many_mut(results, ranges_count, "results") }?),
        };
        let file = FILES.get(file)?;
        let exceptions = file.gather_into(&extents(&file, ranges)?, output)?;
        first_exception(&file, ranges, &exceptions, results)
    })
}

/// A gather for a queue, with the caller's memory until its end.
pub(crate) struct Job {
    file: File,
    ranges: Box<[Range]>,
    extents: Vec<(u64, usize)>,
    /// Destination for the bytes of all ranges, and its length.
    output: NonNull<u8>,
    output_bytes: usize,
    /// None if the caller passed NULL.
    results: Option<NonNull<i64>>,
}

// SAFETY: the caller lends the memory to the thread that runs the job, and only that thread uses
// it.
unsafe impl Send for Job {}

impl Job {
    /// Checks a call of nowait_submit_gather.
    ///
    /// # Safety
    /// As nowait_submit_gather: until its completion is reaped.
    pub(crate) unsafe fn new(
        file: FileHandle,
        ranges: (*const Range, usize),
        output: (*mut c_void, usize),
        results: *mut i64,
    ) -> Result<Job> {
        // SAFETY: the caller's promise.
        let (ranges, output) =
            unsafe { (many(ranges.0, ranges.1, "ranges")?, many_mut::<u8>(output.0.cast(), output.1, "output")?) };
        let results = match results.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(NonNull::from(unsafe { many_mut(results, ranges.len(), "results") }?).cast()),
        };
        let file = File::clone(&*FILES.get(file)?);
        let extents = extents(&file, ranges)?;
        let sum = extents.iter().try_fold(0_usize, |sum, extent| sum.checked_add(extent.1));
        // If the sum exceeds the output, the library reports that error.
        let output_bytes = sum.map_or(output.len(), |sum| sum.min(output.len()));
        Ok(Job { file, ranges: ranges.into(), extents, output: NonNull::from(output).cast(), output_bytes, results })
    }

    /// Runs the gather. The token is dropped when the caller's memory is released.
    pub(crate) async fn run(self, loan: impl Send + 'static) -> Result<u64> {
        // SAFETY: the promise of `new`, since the completion is reaped only after the loan was
        // dropped.
        let memory = unsafe { Lent::from_raw(self.output, self.output_bytes, loan) };
        let gathered = self.file.gather(&*self.extents).into_buffer(memory).await.map_err(|error| error.error)?;
        let results = self.results.map(|results| {
            // SAFETY: the promise of `new`; the loan is in `gathered`.
            unsafe { std::slice::from_raw_parts_mut(results.as_ptr(), self.ranges.len()) }
        });
        first_exception(&self.file, &self.ranges, gathered.exceptions(), results).map(|()| 0)
    }
}

fn extents(file: &File, ranges: &[Range]) -> Result<Vec<(u64, usize)>> {
    let mut extents = Vec::new();
    if extents.try_reserve_exact(ranges.len()).is_err() {
        let text = format!("gather {}: no memory for {} ranges", file.path().display(), ranges.len());
        return Err(Failure::new(libc::ENOMEM, text));
    }
    extents.extend(ranges.iter().map(|range| (range.offset, usize::try_from(range.length).unwrap_or(usize::MAX))));
    Ok(extents)
}

/// Fills the results of a gather; returns the first incomplete range as an error.
fn first_exception(file: &File, ranges: &[Range], exceptions: &Exceptions, results: Option<&mut [i64]>) -> Result<()> {
    if let Some(results) = results {
        for (result, range) in results.iter_mut().zip(ranges) {
            *result = range.length as i64;
        }
        for (index, bytes) in exceptions.short() {
            results[*index] = *bytes as i64;
        }
        for error in exceptions.errors() {
            if let Some(index) = error.range_index() {
                results[index] = -i64::from(Failure::from(error.clone()).errno);
            }
        }
    }
    let short = exceptions.short().first();
    match exceptions.errors().first() {
        Some(error) if short.is_none_or(|short| error.range_index() < Some(short.0)) => Err(error.clone().into()),
        _ => match short {
            Some((index, bytes)) => {
                let Range { offset, length } = ranges[*index];
                let path = file.path().display();
                let text = format!(
                    "gather range {index} {path} (offset {offset}, length {length}): the file ends first: only {bytes} bytes are available"
                );
                Err(Failure::new(libc::ENODATA, text).of_range(*index))
            }
            None => Ok(()),
        },
    }
}

const _: () = assert!(size_of::<Range>() == 16);
