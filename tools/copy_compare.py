#!/usr/bin/env python3
"""Compares `nowait copy` with other commands, and writes a record (see docs/measurements/README.md).

Each round runs all commands in a drawn order. Before each run the target is removed, all is synced, and the caches
are dropped. A run ends when the command has ended and the target's file system is synced; for a reflink, when the
command has ended. The first copy of each command is compared with its source. Needs root, and fincore(1) of util-linux.
"""

import argparse
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
PAGE_BYTES = resource.getpagesize()
FILE_BYTES = 8 << 10
FOLDERS, FILES = 5, 1024

# By kind of copy: the commands, by name of the way. xcp, fcp and cpz share blocks where the file system can.
COMMANDS = {
    "big": {
        "nowait": ["nowait", "copy", "--reflink=never", "SOURCE", "TARGET"],
        "cp": ["cp", "-a", "--reflink=never", "SOURCE", "TARGET"],
        "dd": ["dd", "bs=1M", "status=none", "if=SOURCE", "of=TARGET"],
        "rsync": ["rsync", "-aHAX", "--whole-file", "SOURCE", "TARGET"],
        "xcp": ["xcp", "--no-progress", "--reflink=never", "SOURCE", "TARGET"],
        "fcp": ["fcp", "SOURCE", "TARGET"],
        "cpz": ["cpz", "SOURCE", "TARGET"],
    },
    "big-neutral": {
        "nowait": ["nowait", "copy", "--reflink=never", "--cache-neutral", "SOURCE", "TARGET"],
        "cp": ["cp", "-a", "--reflink=never", "SOURCE", "TARGET"],
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
    },
}


def make_source(kind, path, file_bytes):
    """Makes a file, or a tree of short files, of random bytes."""
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


def names(path):
    """Yields the relative names of a tree, beginning with the empty one."""
    yield ""
    if os.path.isdir(path):
        for folder, folders, files in os.walk(path):
            for name in folders + files:
                yield os.path.relpath(os.path.join(folder, name), path)


def keeps_metadata(source, target):
    """Whether modes, owners and modification times of a copy are those of its source."""
    def facts(path):
        stat = os.lstat(path)
        return stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime_ns
    return all(facts(os.path.join(source, name)) == facts(os.path.join(target, name)) if name else
               facts(source) == facts(target) for name in names(source))


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def cached_pages(path):
    """Pages of a file in the page cache."""
    shown = subprocess.run(["fincore", "-b", "-n", "-o", "RES", path], capture_output=True, text=True, check=True)
    return int(shown.stdout) // PAGE_BYTES


def machine_cpu_ms():
    """Busy time of all processors since the start, in ms."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) * 1000 // os.sysconf("SC_CLK_TCK")


def run(command, source, target, kind):
    """Runs one copy, and returns what it took."""
    remove(target)
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3")
    arguments = [part.replace("SOURCE", source).replace("TARGET", target) for part in command]
    machine = machine_cpu_ms()
    started = time.monotonic_ns()
    child = os.posix_spawnp(arguments[0], arguments, os.environ)
    _, status, usage = os.wait4(child, 0)
    returned = time.monotonic_ns()
    if status != 0:
        raise SystemExit(f"copy_compare: {' '.join(arguments)}: status {status}")
    subprocess.run(["sync", "-f", target], check=True)
    stable = time.monotonic_ns()
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
    """Ends the program if the copy differs."""
    compared = subprocess.run(["diff", "-rq", source, target], capture_output=True, text=True, check=False)
    if compared.returncode != 0:
        raise SystemExit(f"copy_compare: the copy by {way} differs: {compared.stdout}")


def row(case, way, runs, operations, copied_bytes, clock):
    """Makes a row of a record: medians of the runs, and the speed of each round."""
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
    """First line that a command prints of its version."""
    shown = subprocess.run([way, "--version"], capture_output=True, text=True, check=False)
    return (shown.stdout or shown.stderr).strip().split("\n")[0]


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--from", dest="source", required=True, help="existing directory that gets the sources")
    asked.add_argument("--to", dest="target", required=True, help="existing directory that gets the copies")
    asked.add_argument("--places", required=True, help="names of both file systems: ext4:xfs")
    asked.add_argument("--kinds", default="big,big-neutral,tree", help=", ".join(COMMANDS))
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument("--reflink-rounds", type=int, default=101)
    asked.add_argument("--mib", type=int, default=2048, help="size of a big file; a reflink's has 64 MiB")
    asked.add_argument("--seed", type=int, default=None)
    asked.add_argument("--json", required=True)
    chosen = asked.parse_args()
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
            runs = {way: [] for way in commands}
            for number in range(chosen.reflink_rounds if kind == "reflink" else chosen.rounds):
                loads.append(os.getloadavg()[0])
                for way in draw.sample(list(commands), len(commands)):
                    runs[way].append(run(commands[way], source, target, kind))
                    if number == 0:
                        compare(way, source, target)
                print(f"{chosen.places} {kind}: round {number + 1}", file=sys.stderr)
            remove(source)
            remove(target)
            case = f"{kind} {'hot' if from_name == 'tmpfs' else 'cold'} from={from_name} to={to_name}"
            clock = "returned_ms" if kind == "reflink" else "copy_ms"
            rows += [row(case, way, runs[way], operations, copied, clock) for way in commands]
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                            capture_output=True, text=True, check=True).stdout.strip()
    environment = {"commit": commit, "date": time.strftime("%FT%TZ", time.gmtime()),
                   "command": " ".join(["tools/copy_compare.py", *sys.argv[1:]]),
                   "kernel": f"{platform.release()} {platform.machine()}", "cpus": os.cpu_count(), "seed": seed}
    text = f"{'; '.join(version(way) for way in used)}; load {min(loads):.1f} to {max(loads):.1f}"
    with open(chosen.json, "w", encoding="utf-8") as file:
        head = json.dumps({"environment": environment, "notes": [{"code": "commands", "text": text}]})
        file.write(head[:-1] + ', "rows": [\n' + ",\n".join(json.dumps(one) for one in rows) + "\n]}\n")
    for one in rows:
        shares = f"{min(one['rounds']) / one['ops_per_s']:.2f}–{max(one['rounds']) / one['ops_per_s']:.2f}"
        print(f"{one['case']} {one['way']}: {one['copy_ms']:.2f} ms ({shares}), command {one['returned_ms']:.2f} ms, "
              f"CPU {one['cpu_ms']:.1f} ms, metadata {one['keeps_metadata']}")


if __name__ == "__main__":
    main()
