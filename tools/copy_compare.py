#!/usr/bin/env python3
"""Compares `nowait copy` with other commands, and writes a record (see docs/measurements/README.md).

Each round runs all commands in random order. Before each run: remove the target; sync; drop the caches; copy one short
file by the command, to cache its program; write to as much free memory as the copies need, since a host takes free
memory from a virtual machine. Reflinks, and copies on tmpfs, do not drop the caches. The clock stops when the target's
file system is synced; for reflinks, when the command exits. The first copy of each command is compared with its source.
Needs root, and fincore(1) of util-linux.
"""

import argparse
import ctypes
import json
import mmap
import os
import platform
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
PAGE_BYTES = resource.getpagesize()
FILE_BYTES = 8 << 10
FOLDERS, FILES = 5, 1024

# Commands by kind of copy and by way. They share blocks where the file systems can, so measure `big` only where they
# cannot: cp --reflink=never would copy by read and write.
COMMANDS = {
    "big": {
        "nowait": ["nowait", "copy", "SOURCE", "TARGET"],
        "cp": ["cp", "-a", "SOURCE", "TARGET"],
        "dd": ["dd", "bs=1M", "status=none", "if=SOURCE", "of=TARGET"],
        "rsync": ["rsync", "-aHAX", "--whole-file", "SOURCE", "TARGET"],
        "xcp": ["xcp", "--no-progress", "SOURCE", "TARGET"],
        "fcp": ["fcp", "SOURCE", "TARGET"],
        "cpz": ["cpz", "SOURCE", "TARGET"],
    },
    "big-neutral": {
        "nowait": ["nowait", "copy", "--cache-neutral", "SOURCE", "TARGET"],
        "cp": ["cp", "-a", "SOURCE", "TARGET"],
        "dd": ["dd", "bs=1M", "status=none", "iflag=direct", "oflag=direct", "if=SOURCE", "of=TARGET"],
    },
    "tree": {
        "nowait": ["nowait", "copy", "SOURCE", "TARGET"],
        "cp": ["cp", "-a", "SOURCE", "TARGET"],
        "rsync": ["rsync", "-aHAX", "--whole-file", "SOURCE/", "TARGET"],
        "xcp": ["xcp", "--no-progress", "-r", "--ownership", "SOURCE", "TARGET"],
        "fcp": ["fcp", "SOURCE", "TARGET"],
        "cpz": ["cpz", "SOURCE", "TARGET"],
    },
    "reflink": {
        "nowait": ["nowait", "copy", "--reflink=always", "SOURCE", "TARGET"],
        "cp": ["cp", "-a", "--reflink=always", "SOURCE", "TARGET"],
        "xcp": ["xcp", "--no-progress", "--reflink=always", "SOURCE", "TARGET"],
        "fcp": ["fcp", "SOURCE", "TARGET"],
        "cpz": ["cpz", "SOURCE", "TARGET"],
    },
}


def make_source(kind, path, file_bytes):
    """Creates the source: a file, or a tree of short files, with random contents."""
    if kind == "tree":
        for folder in range(FOLDERS):
            os.makedirs(f"{path}/{folder}")
            for number in range(FILES):
                with open(f"{path}/{folder}/{number:04}", "wb") as file:
                    file.write(random.randbytes(FILE_BYTES))
    else:
        with open(path, "wb") as file:
            for _ in range(file_bytes // MIB):
                file.write(random.randbytes(MIB))
    # What a copy may lose: an owner, a mode, an attribute, a second name, and times that no copy made now has.
    first = f"{path}/0/0000" if kind == "tree" else path
    os.chown(first, 1, 1)
    os.chmod(first, 0o640)
    os.setxattr(first, "user.kept", b"yes")
    if kind == "tree":
        os.link(first, f"{path}/0/link")
    for end in sorted(ends(path), reverse=True):
        os.utime(path + end, ns=(10**18 + 123456789, 10**18 + 987654321))


def ends(path):
    """Yields "" for a file or a tree, then "/NAME" for each entry of the tree."""
    yield ""
    for folder, folders, files in os.walk(path):
        for name in folders + files:
            yield os.path.join(folder, name)[len(path):]


def keeps_metadata(source, target):
    """Returns whether the copy has its source's modes, owners, modification times, attributes and hard links."""
    def facts(path):
        stat = os.lstat(path)
        links = 1 if os.path.isdir(path) else stat.st_nlink
        return stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime_ns, links, sorted(os.listxattr(path))
    return all(facts(source + end) == facts(target + end) for end in ends(source))


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def cached_pages(path):
    """Returns the number of a file's pages in the page cache."""
    shown = subprocess.run(["fincore", "-b", "-n", "-o", "RES", path], capture_output=True, text=True, check=True)
    return int(shown.stdout) // PAGE_BYTES


def machine_cpu_ms():
    """Returns the busy time of all processors since boot, in ms."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) * 1000 // os.sysconf("SC_CLK_TCK")


def arguments_of(command, source, target):
    return [part.replace("SOURCE", source).replace("TARGET", target) for part in command]


def warm_up(command, source, target, kind):
    """Copies one short file, so that the clock does not include reading the program."""
    remove(source)
    remove(target)
    if kind == "tree":
        os.mkdir(source)
    with open(f"{source}/one" if kind == "tree" else source, "wb") as file:
        file.write(bytes(PAGE_BYTES))
    subprocess.run(arguments_of(command, source, target), check=True)
    remove(source)
    remove(target)


def claim_memory(size):
    """Writes to free memory, and frees it: a host takes free memory from a virtual machine after two seconds."""
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def run(command, source, target, kind, is_cold):
    """Runs one copy; returns its times, processor time, context switches and cached pages."""
    remove(target)
    os.sync()
    if is_cold:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
    warm_up(command, f"{source}-warm", f"{target}-warm", kind)
    arguments = arguments_of(command, source, target)
    on_target = os.open(os.path.dirname(target), os.O_RDONLY)
    claim_memory({"tree": 256 * MIB, "reflink": 16 * MIB}.get(kind) or 3 * os.path.getsize(source))
    machine = machine_cpu_ms()
    started = time.monotonic_ns()
    child = os.posix_spawnp(arguments[0], arguments, os.environ)
    _, status, usage = os.wait4(child, 0)
    returned = time.monotonic_ns()
    if status != 0:
        raise SystemExit(f"copy_compare: {' '.join(arguments)}: exit code {os.waitstatus_to_exitcode(status)}")
    if LIBC.syncfs(on_target) != 0:
        raise SystemExit(f"copy_compare: {target}: {os.strerror(ctypes.get_errno())}")
    stable = time.monotonic_ns()
    os.close(on_target)
    seen = {
        "copy_ms": (stable - started) / 1e6,
        "returned_ms": (returned - started) / 1e6,
        "cpu_ms": (usage.ru_utime + usage.ru_stime) * 1e3,
        "system_ms": usage.ru_stime * 1e3,
        "switches": usage.ru_nvcsw + usage.ru_nivcsw,
        "machine_cpu_ms": machine_cpu_ms() - machine,
        "keeps_metadata": keeps_metadata(source, target),
    }
    if kind.startswith("big"):
        seen["source_pages_cached"], seen["copy_pages_cached"] = cached_pages(source), cached_pages(target)
    return seen


def compare(way, source, target):
    """Exits with an error if the contents differ."""
    compared = subprocess.run(["diff", "-rq", source, target], capture_output=True, text=True, check=False)
    if compared.returncode != 0:
        raise SystemExit(f"copy_compare: {way}: diff of source and copy: {compared.stdout}{compared.stderr}")


def row(case, way, runs, operations, copied_bytes, clock):
    """Returns a row of the record: medians over the rounds, and the rate of each."""
    middle = {key: statistics.median(one[key] for one in runs) for key in runs[0] if key != "keeps_metadata"}
    rounds = [operations / one[clock] * 1e3 for one in runs]
    system, switches = middle.pop("system_ms"), middle.pop("switches")
    speed = statistics.median(rounds)
    return {
        "table": "copy", "case": case, "way": way, "ops_per_s": speed,
        "bytes_per_s": speed * copied_bytes / operations, "latency_ns": None,
        "cpu_us_per_op": {"caller": 0.0, "ring_workers": 0.0, "pool": middle["cpu_ms"] * 1e3 / operations,
                          "total": middle["cpu_ms"] * 1e3 / operations, "system": system * 1e3 / operations},
        "context_switches_per_op": switches / operations, "punts_per_op": 0.0, "inline_fraction": None,
        "prepared_ms": 0.0, "rounds": rounds, **middle,
        "keeps_metadata": all(one["keeps_metadata"] for one in runs),
    }


def version(way):
    """Returns the first line of `COMMAND --version`."""
    shown = subprocess.run([way, "--version"], capture_output=True, text=True, check=False)
    return (shown.stdout or shown.stderr).strip().split("\n")[0]


def write_record(path, rows, seed, loads, used):
    """Writes the record of what was measured so far."""
    # `nowait 0.1.0 (commit …)`: that of the program, not of this folder.
    commit = re.search(r"[0-9a-f]{12}(-dirty)?", version("nowait"))
    environment = {"commit": commit.group() if commit else "unknown", "date": time.strftime("%FT%TZ", time.gmtime()),
                   "command": " ".join(["tools/copy_compare.py", *sys.argv[1:]]),
                   "kernel": f"{platform.release()} {platform.machine()}", "cpus": os.cpu_count(), "seed": seed}
    text = f"{'; '.join(f'{way}: {version(way)}' for way in used)}; load average {min(loads):.1f} to {max(loads):.1f}"
    with open(path, "w", encoding="utf-8") as file:
        head = json.dumps({"environment": environment, "notes": [{"code": "commands", "text": text}]})
        file.write(head[:-1] + ', "rows": [\n' + ",\n".join(json.dumps(one) for one in rows) + "\n]}\n")


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--from", dest="source", required=True, help="existing directory to create the sources in")
    asked.add_argument("--to", dest="target", required=True, help="existing directory to create the copies in")
    asked.add_argument("--places", required=True, help="file systems of --from and --to, such as ext4:xfs")
    asked.add_argument("--kinds", default="big,big-neutral,tree", help="comma-separated: " + ", ".join(COMMANDS))
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument("--reflink-rounds", type=int, default=31)
    asked.add_argument("--mib", type=int, default=1024, help="size of the big file in MiB; a reflink's has 64 MiB")
    asked.add_argument("--seed", type=int, default=None)
    asked.add_argument("--json", required=True)
    chosen = asked.parse_args()
    # So that the folders are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    from_name, to_name = chosen.places.split(":")
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(1 << 31)
    draw = random.Random(seed)
    rows, loads, used = [], [], []
    with tempfile.TemporaryDirectory(prefix="nowait-compare-", dir=chosen.source) as sources, \
            tempfile.TemporaryDirectory(prefix="nowait-compare-", dir=chosen.target) as targets:
        for kind in chosen.kinds.split(","):
            commands = {way: command for way, command in COMMANDS[kind].items() if shutil.which(command[0])}
            used += [way for way in commands if way not in used]
            source, target = f"{sources}/{kind}", f"{targets}/{kind}"
            file_bytes = (64 if kind == "reflink" else chosen.mib) * MIB
            make_source(kind, source, file_bytes)
            is_tree = kind == "tree"
            operations, copied = (FOLDERS * FILES, FOLDERS * FILES * FILE_BYTES) if is_tree else (1, file_bytes)
            is_cold = kind != "reflink" and from_name != "tmpfs"
            runs = {way: [] for way in commands}
            for number in range(chosen.reflink_rounds if kind == "reflink" else chosen.rounds):
                loads.append(os.getloadavg()[0])
                for way in draw.sample(list(commands), len(commands)):
                    runs[way].append(run(commands[way], source, target, kind, is_cold))
                    if number == 0:
                        compare(way, source, target)
                print(f"{chosen.places} {kind}: round {number + 1}", file=sys.stderr)
            remove(source)
            remove(target)
            case = f"{kind} {'cold' if is_cold else 'hot'} from={from_name} to={to_name}"
            clock = "returned_ms" if kind == "reflink" else "copy_ms"
            rows += [row(case, way, runs[way], operations, copied, clock) for way in commands]
            write_record(chosen.json, rows, seed, loads, used)
    for one in rows:
        shares = f"{min(one['rounds']) / one['ops_per_s']:.2f}–{max(one['rounds']) / one['ops_per_s']:.2f}"
        print(f"{one['case']} {one['way']}: rates {shares} of the median; command {one['returned_ms']:.2f} ms, "
              f"synced {one['copy_ms']:.2f} ms, CPU {one['cpu_ms']:.1f} ms, metadata {one['keeps_metadata']}")


if __name__ == "__main__":
    main()
