#!/usr/bin/env python3
"""Packages the published crates, and uses each as a stranger does: tools/release/crates.py COMMAND

list       prints the published crates, each after its dependencies.
manifest PACKAGE    prints the path of its Cargo.toml.
package    makes dist/*.crate, checks their metadata and contents, and makes a registry of them and of all
           packages of the lock files: a directory that replaces crates.io (cargo's source replacement).
libraries  in empty folders, with that registry only: the `cargo add` of each README, and its example as a
           reader sees it, built and run.
command    the same with `cargo install` of the command, and its README's example.
licences PACKAGE         prints the licences of all packages that a program contains.
steps PAGE               prints the example of a README as a program, after a comment: what it adds.
example PAGE LANGUAGE    prints the first example of a page.

The network is used by `package` only, for packages that this machine's cargo has not downloaded yet.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "target" / "release-check"
DIST = OUT / "dist"
REGISTRY = OUT / "registry"
# crates.io refuses packages above 10 MiB; ours are text.
PACKAGE_BYTES_MAX = 1 << 20
INCLUDED = re.compile(r'(?:include(?:_str|_bytes)?!\(|#\[path =)\s*"([^"]+)"')
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STARTED = float(os.environ.get("RELEASE_CHECK_STARTED") or time.time())


def say(text):
    print(f"release-check: {time.time() - STARTED:4.0f} s  {text}", flush=True)


def fail(text):
    sys.exit(f"release-check: {text}")


def run(*command, **options):
    """Runs a command that must succeed; shows its output only if it fails."""
    command = [str(part) for part in command]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode:
        fail(f"{' '.join(command)} exited with {result.returncode}:\n{result.stdout}")
    return result.stdout


def published():
    """Returns (manifest, path) of each crate that is published, each after its dependencies."""
    crates = {}
    for path in [*sorted(ROOT.glob("crates/*/Cargo.toml")), ROOT / "bench" / "Cargo.toml"]:
        manifest = tomllib.loads(path.read_text("utf-8"))
        if manifest["package"].get("publish", True):
            crates[manifest["package"]["name"]] = (manifest, path)
    order = []

    def visit(name):
        if crates[name] not in order:
            for dependency in crates[name][0].get("dependencies", {}):
                if dependency in crates:
                    visit(dependency)
            order.append(crates[name])

    for name in crates:
        visit(name)
    return order


def check_metadata(manifest, crates):
    package, problems = manifest["package"], []
    for key in ("description", "license", "readme", "rust-version", "keywords", "categories"):
        if not package.get(key):
            problems.append(f"no {key}")
    if len(package.get("keywords", [])) > 5 or len(package.get("categories", [])) > 5:
        problems.append("more than five keywords or categories")
    for table in ("dependencies", "build-dependencies"):
        for name, dependency in manifest.get(table, {}).items():
            if not isinstance(dependency, dict) or "path" not in dependency:
                continue
            if name not in crates:
                problems.append(f"depends on {name}, which is not published")
            elif dependency.get("version") != crates[name]:
                problems.append(f"depends on {name} {dependency.get('version')}, which is {crates[name]}")
    if problems:
        fail(f"{package['name']}: {'; '.join(problems)}")


def check_includes(folder):
    """Tests and examples use files of the package only. (A build shows it of src/, except of its tests.)"""
    for path in folder.rglob("*.rs"):
        for included in INCLUDED.findall(path.read_text("utf-8")):
            if path.relative_to(folder).parts[0] != "src" and not (path.parent / included).exists():
                fail(f"{path.relative_to(REGISTRY)} includes {included}, which is not in the package")


def cargo_config():
    return OUT / "registry.toml"


def vendor():
    """Fills the registry with all packages of the lock files, if these changed."""
    manifests = [path for _, path in published() if "[workspace]" in path.read_text("utf-8")]
    locks = [ROOT / "Cargo.lock", *(path.with_name("Cargo.lock") for path in manifests)]
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
    made_from = OUT / "registry.sha256"
    if not made_from.exists() or made_from.read_text() != digest:
        shutil.rmtree(REGISTRY, ignore_errors=True)
        sync = [part for path in manifests for part in ("--sync", path)]
        run("cargo", "vendor", "--quiet", "--locked", "--versioned-dirs", *sync, REGISTRY, cwd=ROOT)
        made_from.write_text(digest)


def make_registry():
    """Makes the registry without our own crates, and cargo's configuration for it."""
    vendor()
    for folder in REGISTRY.glob("nowait*"):
        shutil.rmtree(folder)
    cargo_config().write_text(
        '[source.crates-io]\nreplace-with = "rehearsal"\n\n'
        f'[source.rehearsal]\ndirectory = "{REGISTRY}"\n\n[net]\noffline = true\n'
    )


def package():
    DIST.mkdir(parents=True, exist_ok=True)
    make_registry()
    say(f"registry: {len(list(REGISTRY.iterdir()))} packages of the lock files")
    crates = {manifest["package"]["name"]: manifest["package"]["version"] for manifest, _ in published()}
    built = OUT / "build-package"
    for manifest, path in published():
        check_metadata(manifest, crates)
        name = f"{manifest['package']['name']}-{manifest['package']['version']}"
        # Strangers build it, below. --allow-dirty: a rehearsal may precede the commit.
        run("cargo", "--config", cargo_config(), "package", "--quiet", "--no-verify", "--allow-dirty",
            "--manifest-path", path, "--target-dir", built, cwd=path.parent)  # fmt: skip
        archive = built / "package" / f"{name}.crate"
        with tarfile.open(archive) as files:
            names = {member.name.removeprefix(f"{name}/") for member in files}
            bytes_unpacked = sum(member.size for member in files)
        run("tar", "-xf", archive, "-C", REGISTRY)
        sources = [str(source.relative_to(path.parent)) for source in path.parent.glob("src/**/*.*")]
        for wanted in ("Cargo.toml", "Cargo.lock", "README.md", "LICENSE-MIT", "LICENSE-APACHE", *sources):
            if wanted not in names:
                fail(f"{name} contains no {wanted}")
        check_includes(REGISTRY / name)
        if archive.stat().st_size > PACKAGE_BYTES_MAX:
            fail(f"{name}.crate has {archive.stat().st_size} bytes, more than {PACKAGE_BYTES_MAX}")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        (REGISTRY / name / ".cargo-checksum.json").write_text(f'{{"files":{{}},"package":"{digest}"}}')
        shutil.copy2(archive, DIST)
        missing = "" if manifest["package"].get("repository") else "; no repository address (RELEASING.md)"
        say(f"{name}: {len(names)} files, {bytes_unpacked >> 10} KiB, "
            f"{archive.stat().st_size >> 10} KiB packed{missing}")  # fmt: skip


def shown(readme, language):
    """Returns the first example in a language as a reader sees it: without rustdoc's hidden lines."""
    for fence in FENCE.finditer(readme):
        if fence[1] == language:
            lines = fence[2].splitlines()
            return "\n".join(line for line in lines if not re.match(r"# |#$", line) or language != "rust")
    return None


def steps(readme):
    """Returns what a README shows: the arguments of its `cargo add`, and its example as a program."""
    example, command = shown(readme, "rust"), re.search(r"`cargo add ([^`]+)`", readme)
    if not example or not command:
        fail(f"a README shows no `cargo add` or no example:\n{readme[:200]}")
    if "fn main()" not in example:
        example = f"fn main() -> Result<(), Box<dyn std::error::Error>> {{\n{example}\nOk(())\n}}"
    return command[1].split(), example + "\n"


def use_library(name, version, folder, target):
    """Follows the README in an empty program: its `cargo add`, and its example as the program, which runs."""
    added, example = steps((REGISTRY / f"{name}-{version}" / "README.md").read_text("utf-8"))
    cargo = ("cargo", "--config", cargo_config())
    run(*cargo, "new", "--quiet", "--vcs", "none", folder)
    run(*cargo, "add", "--quiet", *added, cwd=folder)
    (folder / "src" / "main.rs").write_text(example)
    start = time.time()
    run(*cargo, "run", "--quiet", "--target-dir", target, cwd=folder)
    for locked in tomllib.loads((folder / "Cargo.lock").read_text("utf-8"))["package"]:
        if locked["name"].startswith("nowait") and "checksum" not in locked:
            fail(f"{name}: {locked['name']} is not from the registry")
    say(f"{name}: built and ran what its README shows, {time.time() - start:.0f} s after cargo add")


def use_command(name, root, target, folder):
    """Installs the command from the registry, and runs the example of its README."""
    start = time.time()
    run("cargo", "--config", cargo_config(), "install", "--quiet", "--locked", name,
        "--root", root, "--target-dir", target, cwd=folder)  # fmt: skip
    say(f"cargo install {name}: {time.time() - start:.0f} s")
    readme = next(REGISTRY.glob(f"{name}-[0-9]*")) / "README.md"
    example = shown(readme.read_text("utf-8"), "sh")
    (folder / "example").mkdir()
    path = f"{root / 'bin'}:{os.environ['PATH']}"
    run("sh", "-e", "-c", example, cwd=folder / "example", env={**os.environ, "PATH": path})
    say(f"{name}: its README's example ran")


@contextlib.contextmanager
def empty_folder():
    if not cargo_config().exists():
        fail("first: tools/release/crates.py package")
    with tempfile.TemporaryDirectory(prefix="nowait-release-", dir="/var/tmp") as folder:
        yield Path(folder)


def libraries():
    """Follows each library's README in a program of its own."""
    with empty_folder() as folder:
        for manifest, path in published():
            name, version = manifest["package"]["name"], manifest["package"]["version"]
            if shown((path.parent / "README.md").read_text("utf-8"), "rust"):
                use_library(name, version, folder / f"uses-{name}", folder / "target")


def command():
    """Installs the command, and nowait-bench with it."""
    with empty_folder() as folder:
        use_command("nowait-cli", folder / "root", folder / "target", folder)


def licences(name):
    """Prints the licences of all packages that a package's program contains."""
    vendor()
    tree = run("cargo", "tree", "--locked", "--package", name, "--edges", "normal,no-proc-macro",
               "--prefix", "none", "--format", "{p}\t{l}", cwd=ROOT)  # fmt: skip
    for line in sorted(set(tree.replace(" (*)", "").splitlines())):
        package, licence = line.split("\t")
        name, version, *_ = package.split(" ")
        if name.startswith("nowait"):
            continue
        print(f"\n{'-' * 78}\n{name} {version[1:]}: {licence}\n")
        texts = [path for path in sorted((REGISTRY / f"{name}-{version[1:]}").iterdir())
                 if re.match(r"(?i)(licen[cs]e|copying|notice|unlicense|copyright)", path.name)]  # fmt: skip
        for path in texts:
            # The text of Apache-2.0 is there once.
            text = path.read_text("utf-8", "replace") if path.is_file() else ""
            if "Apache License" not in text:
                print(text)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["list"]:
            print(*(manifest["package"]["name"] for manifest, _ in published()), sep="\n")
        case ["manifest", name]:
            print(next(path for manifest, path in published() if manifest["package"]["name"] == name))
        case ["package"]:
            package()
        case ["libraries"]:
            libraries()
        case ["command"]:
            command()
        case ["licences", name]:
            licences(name)
        case ["steps", page]:
            print("//", *steps(Path(page).read_text("utf-8"))[0])
            print(steps(Path(page).read_text("utf-8"))[1], end="")
        case ["example", page, language]:
            print(shown(Path(page).read_text("utf-8"), language))
        case _:
            sys.exit(__doc__)
