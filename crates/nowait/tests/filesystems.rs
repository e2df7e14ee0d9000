//! The contract on file systems that the root is not on. Needs root; skipped, and said so, where
//! one cannot be mounted.

mod common;
mod promises;

use common::mounts::{self, Kind, Mount};
use nowait::{Engine, Nowait, Route};
use promises::{Ctx, keeps_every_promise};

fn on(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    for builder in [Nowait::builder(), Nowait::builder().strict(true), Nowait::builder().route(Some(Route::Ring))] {
        let folder = tempfile::tempdir_in(mount.path()).unwrap();
        keeps_every_promise(&Ctx::with(builder.build().unwrap(), folder));
    }
    // Past the page cache, by a ring and by libaio.
    for engine in [Engine::Auto, Engine::Aio] {
        let folder = tempfile::tempdir_in(mount.path()).unwrap();
        match Nowait::builder().engine(engine).build() {
            Ok(nowait) => keeps_every_promise(&Ctx::with(nowait, folder).direct()),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}

mounts::on_every_file_system!(on);

#[test]
fn mounts_are_taken_away_when_a_test_panics() {
    let Some(mount) = Mount::or_skip(Kind::Ext4) else { return };
    let point = mount.path().to_path_buf();
    let listed = || std::fs::read_to_string("/proc/self/mounts").unwrap().contains(point.to_str().unwrap());
    assert!(listed());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _mount = mount;
        panic!("on purpose");
    }));
    assert!(panicked.is_err() && !listed() && !point.exists());
}
