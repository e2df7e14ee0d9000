//! The extension module of the Python package `nowait`. Users import the modules in
//! `python/nowait`; `python/nowait/_nowait.pyi` describes this one.
//!
//! Files in reading order: `memory/` (memory lent by Python and to Python), `os/` (what differs
//! between systems), `error.rs`, `ranges.rs` (offsets and lengths in), `gathered.rs` (the result),
//! `gather.rs`, `file.rs`; for event loops `completions.rs`, `driver.rs`, `start.rs`, `each.rs`,
//! `files.rs`; `log.rs`, `map.rs`, `names.rs`, `copy.rs`, `probe.rs` and `cache/` are independent of each other.
//!
//! `cache`, `copy` and `probe` exist on Linux only, as their crates do: `nowait/_system.py` lists
//! their names.

#[cfg(target_os = "linux")]
mod cache;
mod completions;
#[cfg(target_os = "linux")]
mod copy;
mod driver;
mod each;
mod error;
mod file;
mod files;
mod gather;
mod gathered;
mod log;
mod map;
mod memory;
mod names;
mod os;
#[cfg(target_os = "linux")]
mod probe;
mod ranges;
mod start;

#[pyo3::pymodule]
mod _nowait {
    use pyo3::prelude::*;

    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::cache::{CachedFile, Lease, PageCache, start_cached_gather, start_cached_get};
    #[pymodule_export]
    use crate::completions::Completions;
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::copy::{Copying, copy, start_copy};
    #[pymodule_export]
    use crate::driver::Running;
    #[pymodule_export]
    use crate::each::{Arrivals, start_each};
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::files::start_files;
    #[pymodule_export]
    use crate::gather::{gather, gather_list};
    #[pymodule_export]
    use crate::gathered::Gathered;
    #[pymodule_export]
    use crate::log::{Log, LogReader};
    #[pymodule_export]
    use crate::map::{map_file, map_gather, populate, start_populate};
    #[pymodule_export]
    use crate::memory::{Buffer, Mapping, View, end, pending_releases};
    #[pymodule_export]
    use crate::names::rename;
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::probe::probe_json;
    #[pymodule_export]
    use crate::start::{
        start_close, start_gather, start_open, start_read, start_readinto, start_settle, start_size, start_sync,
        start_truncate, start_write,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // Runs before the interpreter begins to end, while other threads may still have exports.
        module.py().import("atexit")?.call_method1("register", (module.getattr("end")?,))?;
        Ok(())
    }
}
