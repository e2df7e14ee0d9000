//! Promises of operations on names.

use nowait::ErrorOp;

use super::*;
use crate::common::{Way, is_lacking_in_wine};

promises! {
    directories_are_made_and_listed
    files_are_renamed_and_removed
    missing_names_are_not_found
    files_are_replaced_written_and_read_as_a_whole
}

/// A directory of its own, made.
fn directory(ctx: &Ctx) -> PathBuf {
    let path = ctx.path();
    ctx.nowait.fs().create_dir(&path).wait().unwrap();
    path
}

fn create(ctx: &Ctx, path: &Path, bytes: &[u8]) {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).open_in(&ctx.nowait, path).wait().unwrap();
    file.write_all_at(bytes.to_vec(), 0).wait().unwrap();
}

#[track_caller]
fn assert_lists(ctx: &Ctx, directory: &Path, right: &[&str]) {
    for way in Way::ALL {
        assert_eq!(way.run(ctx.nowait.fs().read_dir_names(directory)).unwrap(), right, "{way:?}");
    }
}

#[track_caller]
fn assert_holds(ctx: &Ctx, path: &Path, bytes: &[u8]) {
    let file = open(&ctx.nowait, path);
    assert_eq!(file.size().wait().unwrap(), bytes.len() as u64);
    assert!(file.read_range(0, bytes.len()).wait().unwrap()[..] == *bytes);
}

fn directories_are_made_and_listed(ctx: &Ctx) {
    for way in Way::ALL {
        let directory = directory(ctx);
        assert_lists(ctx, &directory, &[]);
        for name in ["second", "first", "first of all", ".hidden"] {
            create(ctx, &directory.join(name), b"");
        }
        let below = directory.join("below");
        way.run(ctx.nowait.fs().create_dir(&below)).unwrap();
        create(ctx, &below.join("third"), b"");
        assert_lists(ctx, &directory, &[".hidden", "below", "first", "first of all", "second"]);
        assert_lists(ctx, &below.join("."), &["third"]);
        for path in [&below, &directory.join("first")] {
            let error = way.run(ctx.nowait.fs().create_dir(path)).unwrap_err();
            assert_eq!((error.kind(), error.operation()), (ErrorKind::AlreadyExists, ErrorOp::CreateDir));
            assert_names(&error, &["create directory", &path.display().to_string()]);
        }
        let error = way.run(ctx.nowait.fs().read_dir_names(directory.join("first"))).unwrap_err();
        assert_eq!((error.raw_os_error(), error.operation()), (Some(crate::common::errno::ENOTDIR), ErrorOp::List));
        assert_eq!(way.run(ctx.nowait.fs().remove_file(&below)).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_open_fails(ctx, &below, ErrorKind::IsADirectory);
    }
    // More than one call of the kernel's gives.
    let directory = directory(ctx);
    let names: Vec<String> = (0..2000).map(|number| format!("{number:0200}")).collect();
    names.iter().for_each(|name| create(ctx, &directory.join(name), b""));
    assert_lists(ctx, &directory, &names.iter().map(String::as_str).collect::<Vec<_>>());
}

fn files_are_renamed_and_removed(ctx: &Ctx) {
    for way in Way::ALL {
        let directory = directory(ctx);
        let [first, second] = ["first", "second"].map(|name| directory.join(name));
        create(ctx, &first, b"1");
        create(ctx, &second, b"2");
        // Wine 8.0 lacks `FileRenameInfoEx` and `FileDispositionInfoEx` (POSIX semantics): an open file is
        // not replaced, and a removed one keeps its name until it is closed.
        let keeps_open = !is_lacking_in_wine("POSIX semantics of renames and removals");
        let replaced = keeps_open.then(|| open(&ctx.nowait, &second));
        let error = way.run(ctx.nowait.fs().rename_new(&first, &second)).unwrap_err();
        assert_eq!(
            (error.kind(), error.raw_os_error()),
            (ErrorKind::AlreadyExists, Some(crate::common::errno::EEXIST))
        );
        assert_names(&error, &["rename", &first.display().to_string(), &second.display().to_string()]);
        way.run(ctx.nowait.fs().rename(&first, &second)).unwrap();
        assert_lists(ctx, &directory, &["second"]);
        assert_holds(ctx, &second, b"1");
        way.run(ctx.nowait.fs().rename_new(&second, &first)).unwrap();
        assert_lists(ctx, &directory, &["first"]);
        way.run(ctx.nowait.fs().sync_dir(&directory)).unwrap();
        let removed = keeps_open.then(|| open(&ctx.nowait, &first));
        way.run(ctx.nowait.fs().remove_file(&first)).unwrap();
        assert_lists(ctx, &directory, &[]);
        // Handles keep what they were opened for.
        for (file, byte) in [(replaced, b"2"), (removed, b"1")] {
            file.iter().for_each(|file| assert_eq!(*file.read_range(0, 1).wait().unwrap(), *byte));
        }
    }
}

fn missing_names_are_not_found(ctx: &Ctx) {
    let (missing, other) = (ctx.path(), ctx.path());
    for way in Way::ALL {
        for (error, name) in [
            (way.run(ctx.nowait.fs().rename(&missing, &other)).unwrap_err(), ErrorOp::Rename),
            (way.run(ctx.nowait.fs().rename_new(&missing, &other)).unwrap_err(), ErrorOp::Rename),
            (way.run(ctx.nowait.fs().remove_file(&missing)).unwrap_err(), ErrorOp::Remove),
            (way.run(ctx.nowait.fs().sync_dir(&missing)).unwrap_err(), ErrorOp::Sync),
            (way.run(ctx.nowait.fs().read_dir_names(&missing)).unwrap_err(), ErrorOp::List),
        ] {
            assert_eq!((error.kind(), error.operation()), (ErrorKind::NotFound, name));
            assert_names(&error, &[&missing.display().to_string()]);
        }
    }
}

fn files_are_replaced_written_and_read_as_a_whole(ctx: &Ctx) {
    let directory = directory(ctx);
    let path = directory.join("file");
    for len in [10, 0, 100_000] {
        for way in Way::ALL {
            let data = contents(len, len as u64);
            way.run_future(ctx.nowait.fs().write_atomic(&path, data.clone())).unwrap();
            assert_holds(ctx, &path, &data);
            assert_lists(ctx, &directory, &["file"]);
            // In place.
            way.run_future(ctx.nowait.fs().write(&path, vec![1; len / 2])).unwrap();
            assert_holds(ctx, &path, &vec![1; len / 2]);
            ctx.nowait.fs().write(&path, data.clone()).wait().unwrap();
            assert!(way.run_future(ctx.nowait.fs().read(&path)).unwrap() == data);
        }
    }
}
