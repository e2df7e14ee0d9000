//! Tests run by Wine skip parts that it lacks.

/// Whether this is Wine, which lacks `what`; if so, prints `skipped:`.
#[cfg(windows)]
pub(crate) fn is_lacking_in_wine(what: &str) -> bool {
    use std::ffi::{c_char, c_void};
    unsafe extern "system" {
        fn GetModuleHandleA(name: *const c_char) -> *mut c_void;
        fn GetProcAddress(module: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    // SAFETY: both names end with a zero, and every process has this module.
    let function = unsafe { GetProcAddress(GetModuleHandleA(c"ntdll.dll".as_ptr()), c"wine_get_version".as_ptr()) };
    if !function.is_null() {
        eprintln!("skipped: Wine lacks {what}");
    }
    !function.is_null()
}

#[cfg(not(windows))]
pub(crate) fn is_lacking_in_wine(_: &str) -> bool {
    false
}
