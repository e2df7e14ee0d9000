//! The contract, streams and maps on file systems that the root is not on. Needs root; skipped, and
//! said so, where one cannot be mounted.

use std::path::Path;

use crate::common::Way;
use crate::common::mounts::{self, Kind, Mount};
use crate::promises::{Ctx, keeps_every_promise};
use nowait::{Engine, ErrorKind, Nowait, Route};

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

mod streams {
    use crate::common::mounts::{self, Kind, Mount};
    use crate::promises::streams::streams_in;

    fn on(kind: Kind) {
        // On tmpfs the files are memory, too.
        if !crate::common::has_memory(128 << 20) {
            return;
        }
        let Some(mount) = Mount::or_skip(kind) else { return };
        streams_in(mount.path());
    }

    mounts::on_every_file_system!(on);
}

mod maps {
    use crate::common::mounts::{self, Kind, Mount};
    use crate::promises::maps::works_in;
    use nowait::Nowait;

    fn on(kind: Kind) {
        let Some(mount) = Mount::or_skip(kind) else { return };
        works_in(&Nowait::builder().build().unwrap(), mount.path());
    }

    mounts::on_every_file_system!(on);
}

/// Symptom: the advice was to find the user of a file that has none.
#[test]
fn a_name_that_something_is_mounted_on_is_told() {
    struct Bound<'p>(&'p Path);
    impl Drop for Bound<'_> {
        fn drop(&mut self) {
            mounts::unmount(self.0);
        }
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (below, point) = (folder.path().join("below"), folder.path().join("point"));
    std::fs::write(&below, "below").unwrap();
    std::fs::write(&point, "point").unwrap();
    let bound = std::process::Command::new("mount").arg("--bind").args([&below, &point]).output().unwrap();
    let bound = if bound.status.success() { Ok(Bound(&point)) } else { Err(format!("mount: {bound:?}")) };
    let Some(_bound) = mounts::or_skip("a bind mount", bound) else { return };
    for engine in [Engine::Auto, Engine::Aio, Engine::Pool] {
        let Ok(nowait) = Nowait::builder().engine(engine).build() else { continue };
        for way in Way::ALL {
            let advises = |error: nowait::Error| {
                assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
                let text = error.to_string();
                assert!(text.contains("mounted") && text.contains("in place") && !text.contains("fuser"), "{text}");
            };
            advises(way.run_future(nowait.fs().write_atomic(&point, "new")).unwrap_err());
            advises(way.run(nowait.fs().remove_file(&point)).unwrap_err());
            way.run_future(nowait.fs().write(&point, "below")).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "the temporary file is removed");
        }
    }
}
