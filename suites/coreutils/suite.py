"""coreutils' tests of cp(1): `nowait copy` behind the wrapper `cp` of this folder.

The system's cp(1) runs lines that cannot apply, or they are omitted; EXCLUDED_PARTS lists them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from copying import Copying, without
from place import Outcome, Place, Unavailable

TITLE = "coreutils' cp"
LICENCE = "GPL-3.0"
SHOWS = "links, holes, modes, owners, ACLs and capabilities of copies, and targets that are refused"
MINUTES = 3
CI = True

FILE_SYSTEMS = ("ext4", "xfs", "btrfs")

KEEPS_ALL = "`nowait copy` always keeps all metadata (docs/guide/copy.md)"
WORDING = "compares the wording of messages"
NO_BACKUP = "`nowait copy` makes no backups: it refuses --backup (docs/guide/copy.md)"
NO_LINKS = "`nowait copy` makes no links instead of copies: it refuses -l and -s"
NO_PARENTS = "`nowait copy` has no --parents"
NO_ATTRIBUTES_ONLY = "`nowait copy` has no --attributes-only"
NO_CONTENTS = "`nowait copy` has no --copy-contents: it copies a FIFO as a FIFO"
NO_SELINUX = "needs a kernel with SELinux"

EXCLUDED: dict[str, str] = {
    "attr-existing": NO_ATTRIBUTES_ONLY,
    "backup-1": NO_BACKUP,
    "backup-dir": NO_BACKUP,
    "backup-is-src": NO_BACKUP,
    "copy-FMR": "looks for memory errors of cp's C code",
    "cp-a-selinux": NO_SELINUX,
    "cp-i": "`nowait copy` does not prompt: it refuses -i (docs/guide/copy.md)",
    "cp-mv-backup": NO_BACKUP,
    "cp-mv-enotsup-xattr": "`nowait copy` always reports lost attributes (docs/guide/copy.md, What cannot be copied)",
    "cp-parents": NO_PARENTS,
    "cross-dev-symlink": NO_LINKS,
    "existing-perm-dir": "`nowait copy` gives existing directories the source's metadata (docs/guide/copy.md)",
    "existing-perm-race": NO_CONTENTS,
    "file-perm-race": NO_CONTENTS,
    "link": NO_LINKS,
    "link-deref": NO_LINKS,
    "link-heap": NO_LINKS,
    "link-no-deref": NO_LINKS,
    "link-symlink": NO_LINKS,
    "nfs-removal-race": "replaces a function of the C library that `nowait copy` does not call",
    "no-ctx": NO_SELINUX,
    "parent-perm": NO_PARENTS,
    "parent-perm-race": NO_PARENTS,
    "preserve-mode": KEEPS_ALL,
    "sparse-to-pipe": "`nowait copy` neither replaces a FIFO nor writes into it (docs/guide/copy.md)",
}


class Part(NamedTuple):
    """Lines of a script that do not apply, and what runs instead."""

    test: str
    what: str
    reason: str
    pattern: str
    replacement: str


SYSTEM_CP = shutil.which("cp") or "/bin/cp"
NOTHING = ":"
END = "Exit $fail\n"
# Options of same-file that have no counterpart, and the message of each line.
SAME_FILE = r"sed -i -e '/^[01] -[a-z]*[bls]/d' -e 's/ \\[[^]]*\\]//' expected actual; compare expected actual"

EXCLUDED_PARTS = (
    Part("abuse", "messages", WORDING, r"^ *compare exp out.*", NOTHING),
    Part("acl", "cp without -p", KEEPS_ALL, r"^cp (?=a/file)", f"{SYSTEM_CP} "),
    Part("acl", "--attributes-only", NO_ATTRIBUTES_ONLY, r"^cp (?=-p --attributes-only)", f"{SYSTEM_CP} "),
    Part("fail-perm", "messages", WORDING, r"^chmod 0 D$[\s\S]*", END),
    Part("into-self", "-l", NO_LINKS, r"^# This should, too[\s\S]*", END),
    Part("link-preserve", "--no-preserve", KEEPS_ALL, r"^cp (?=.*--no-preserve)", f"{SYSTEM_CP} "),
    Part("perm", "mv, and cp without -p", KEEPS_ALL, r"mv 'cp -p' cp", "'cp -p'"),
    Part("preserve-gid", "cp without -p", KEEPS_ALL, r"^(t[01] .*) cp$", rf"\1 {SYSTEM_CP}"),
    Part("preserve-link", "-u", "`nowait copy` links to a file that -u keeps only if that file has the "
         "source's size and time (docs/guide/copy.md)", r"cp -au", "cp -a"),
    Part("reflink-perm", "--attributes-only", NO_ATTRIBUTES_ONLY, r"^cp (?=.*--attributes-only)", f"{SYSTEM_CP} "),
    Part("same-file", "-b, -l and -s", "`nowait copy` makes no backups, and no links instead of copies",
         r"(for options in '' -d -f -df --rem) [^;]*;", r"\1;"),
    Part("same-file", "messages", WORDING, r"^compare expected actual", SAME_FILE),
    Part("src-base-dot", "-b", NO_BACKUP, r"-ab", "-a"),
    Part("thru-dangling", "messages", WORDING, r"^ *compare exp-err err.*", NOTHING),
    Part("thru-dangling", "POSIXLY_CORRECT", "`nowait copy` never writes through a dangling symbolic link",
         r"(?<=POSIXLY_CORRECT=1) cp", f" {SYSTEM_CP}"),
)


def prepare(source: Path) -> list[str]:
    """Removes the parts that do not apply. Returns the names of all scripts."""
    for part in EXCLUDED_PARTS:
        without(source / f"tests/cp/{part.test}.sh", part.pattern, part.replacement)
    # Features that configure finds on any Linux, and that these tests look up.
    have = ("USE_ACL", "USE_XATTR", "HAVE_CAP", "HAVE_UTIMENSAT", "HAVE_LINKAT")
    (source / "config.h").write_text("".join(f"#define {name} 1\n" for name in have))
    scripts = sorted(path.stem for path in (source / "tests/cp").glob("*.sh"))
    if gone := EXCLUDED.keys() - set(scripts):
        raise Unavailable(f"the suite has changed: it lacks {', '.join(sorted(gone))}")
    return scripts


def environment(place: Place, source: Path) -> dict[str, str]:
    """Returns the variables that coreutils' Makefile exports."""
    version = place.run("rm", "--version").stdout
    if not (found := re.match(r"rm \(GNU coreutils\) (\S+)", version)):
        raise Unavailable("the system's tools are not coreutils")
    top = str(source)
    return {"srcdir": top, "abs_srcdir": top, "abs_top_srcdir": top, "top_srcdir": top,
            "CONFIG_HEADER": f"{top}/config.h", "PACKAGE_VERSION": found[1], "built_programs": "cp mv dd stat chroot",
            "fail": "0", "host_os": "linux-gnu", "host_triplet": "", "EXEEXT": "", "AWK": "awk", "CC": "cc",
            "PERL": "perl", "SHELL": "/bin/sh", "RUN_EXPENSIVE_TESTS": "yes", "RUN_VERY_EXPENSIVE_TESTS": "yes",
            "CANDIDATE_TMP_DIRS": "/dev/shm /tmp /var/tmp"}


def run(place: Place) -> Outcome:
    source, version = place.debian_source("coreutils")
    scripts = prepare(source)
    copying = Copying(place, Path(__file__).with_name("cp"))
    variables = environment(place, source)
    outcome = Outcome(f"coreutils {version}", excluded=dict(EXCLUDED))
    outcome.excluded |= {f"{part.test}, {part.what}": part.reason for part in EXCLUDED_PARTS}
    for kind in FILE_SYSTEMS:
        with place.file_system(kind) as directory:
            for owner in ("root", "nobody"):
                folder = directory / owner
                folder.mkdir()
                shutil.chown(folder, owner)
                (folder / "src").symlink_to(copying.adapter.parent)
                (folder / "tests").symlink_to(source / "tests")
            for script in scripts:
                if script in EXCLUDED:
                    continue
                # One test is for users other than root.
                is_root = "skip_if_root_" not in (source / f"tests/cp/{script}.sh").read_text()
                user = [] if is_root else ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
                shell = ". tests/lang-default; . tests/envvar-check; export TMPDIR=/tmp; " \
                        f"exec /bin/sh tests/cp/{script}.sh 9>&2"
                ran = place.run(*user, "/bin/sh", "-c", shell, cwd=directory / ("root" if is_root else "nobody"),
                                env=variables | copying.env(), check=False, timeout=120)
                fault = copying.fault()
                if ran.returncode == 77:
                    fault = ran.stdout.strip().splitlines()[-1]
                name = f"{kind} {script}"
                outcome.add(f"{name}: {fault}" if fault else name, ran.returncode == 0 and not fault, {})
    return outcome
