//! Reports how files are served, as JSON.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{CString, c_char, c_int};

use nowait_probe::Options;

use crate::border::{self, answer, status};
use crate::failure::{Failure, Result};

/// Makes requests only one at a time, of at most a page. Takes about a second instead of several.
pub const NOWAIT_PROBE_SHALLOW: u32 = 1;
/// Allows dropping the file's pages from the page cache, so that cold reads can be made.
pub const NOWAIT_PROBE_EVICT: u32 = 2;

/// Reports how io_uring and this library serve requests at `path`, which is a file, directory or
/// block device. `json` receives the text that `nowait probe --json` prints for one path; free it
/// with nowait_text_free. `flags` are NOWAIT_PROBE_... or 0.
///
/// The call takes some seconds, creates scratch files beside `path`, and reads some pages of it.
/// Returns 0, or a negative errno: those of stat(2) and open(2); -ESPIPE for a file without
/// offsets. Threads: any.
///
/// # Safety
/// `path` is a string, `json` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_probe(path: *const c_char, flags: u32, json: *mut *mut c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (path, json) = unsafe { (border::path(path, "path")?, answer(json, "json")?) };
        let report = options(flags)?.run(path)?;
        let text = CString::new(format!("{:#}", report.to_json()));
        // JSON contains no zero bytes.
        let text = text.map_err(|_| Failure::new(libc::EILSEQ, "the report has a zero byte"))?;
        json.write(text.into_raw());
        Ok(())
    })
}

fn options(flags: u32) -> Result<Options> {
    if flags & !(NOWAIT_PROBE_SHALLOW | NOWAIT_PROBE_EVICT) != 0 {
        return Err(Failure::new(libc::EINVAL, format!("flags are {flags:#x}; give NOWAIT_PROBE_... or 0")));
    }
    Ok(Options::new().shallow(flags & NOWAIT_PROBE_SHALLOW != 0).evict(flags & NOWAIT_PROBE_EVICT != 0))
}

/// Frees a text of the library; NULL has no effect. Threads: any.
///
/// # Safety
/// `text` is NULL, or a text that nowait_probe returned and that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise: `into_raw` returned the pointer.
        drop(unsafe { CString::from_raw(text) });
    }
}
