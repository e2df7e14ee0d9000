#!/usr/bin/env python3
"""nowait beside fio's own engines, within fio: `make fio-compare` runs this.

    fio_compare.py --engine libnowait-fio.so --json OUT [--dir DIR] [--rounds N] [--seconds S] [--points PATTERN]
    fio_compare.py --show OUT

A point is a way to open the file (buffered or direct), a state of the page cache, a kind of I/O and a depth.
A round of a point runs each engine once, in an order drawn anew; the rounds go over all points in turn. Before
each run the file is synced, and dropped from the page cache or read into it, which mincore(2) verifies. OUT has
the form of `nowait bench --json`: a row for each engine of a point, with the figures of every round.
"""
import argparse
import ctypes
import fnmatch
import json
import mmap
import os
import platform
import random
import statistics
import subprocess
import sys
import time

ENGINES = ["psync", "io_uring", "libaio"]
MIB = 1 << 20
KINDS = {"reads": ["--rw=randread"], "writes": ["--rw=randwrite"], "mixed": ["--rw=randrw", "--rwmixread=70"]}
DEPTHS = [1, 4, 16, 64]
# Cold: no block twice, and more of them than a run reads. Hot: less than the kernel lets be dirty.
SIZES = {"cold": 1024 * MIB, "hot": 128 * MIB, "direct": 1024 * MIB}

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def points():
    return [(state, kind, depth) for state in SIZES for kind in KINDS for depth in DEPTHS]


def case(point):
    state, kind, depth = point
    return f"{'direct' if state == 'direct' else 'buffered ' + state} {kind} depth={depth}"


def resident(fd, size):
    """Fraction of the file's pages in the page cache."""
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if at == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    pages = ctypes.create_string_buffer(size // mmap.PAGESIZE)
    failed = libc.mincore(at, size, pages)
    libc.munmap(at, size)
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(byte & 1 for byte in pages.raw) / len(pages.raw)


def prepare(path, state):
    """Brings the file into the state; says so if it is not."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        wanted = 1.0 if state == "hot" else 0.0
        for _ in range(10):
            if state == "hot":
                for at in range(0, SIZES[state], MIB):
                    os.pread(fd, MIB, at)
            else:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found = resident(fd, SIZES[state])
            if abs(found - wanted) < 0.001:
                return
            time.sleep(0.1)
        sys.exit(f"fio_compare: {path} is to be {state}, and {found:.3f} of it is in the page cache")
    finally:
        os.close(fd)


def run(engine, path, point, seconds, seed):
    """One run of fio: operations and bytes a second, latencies, processor time."""
    state, kind, depth = point
    command = ["fio", "--name=job", "--output-format=json", f"--ioengine={engine}", f"--filename={path}", "--bs=4k",
               f"--size={SIZES[state]}", f"--iodepth={depth}", f"--direct={int(state == 'direct')}", f"--randseed={seed}",
               f"--runtime={int(seconds * 1000)}ms", "--thread", "--invalidate=0", "--fadvise_hint=random", "--fallocate=none",
               "--clat_percentiles=0", "--lat_percentiles=1", *KINDS[kind]]
    command += ["--time_based", "--norandommap"] if state == "hot" else []
    prepare(path, state)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"fio_compare: {' '.join(command)}\n{done.stdout}{done.stderr}")
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    ways = [job[way] for way in ("read", "write") if job[way]["total_ios"]]
    ios = sum(way["total_ios"] for way in ways)
    busiest = max(ways, key=lambda way: way["total_ios"])
    percentiles = busiest["lat_ns"]["percentile"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1e3 / ios
    return {"ops_per_s": sum(way["iops"] for way in ways), "bytes_per_s": sum(way["bw_bytes"] for way in ways),
            "p50": percentiles["50.000000"], "p99": percentiles["99.000000"], "p999": percentiles["99.900000"],
            "max": busiest["lat_ns"]["max"], "cpu_us": cpu, "switches": job["ctx"] / ios}


def row(point, way, rounds):
    middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    cpu = middle["cpu_us"]
    return {"table": "fio", "case": case(point), "way": way, "ops_per_s": middle["ops_per_s"],
            "bytes_per_s": middle["bytes_per_s"],
            "latency_ns": {"p50": int(middle["p50"]), "p99": int(middle["p99"]), "p999": int(middle["p999"]),
                           "max": int(max(one["max"] for one in rounds))},
            "cpu_us_per_op": {"caller": cpu, "pool": 0.0, "total": cpu}, "context_switches_per_op": middle["switches"],
            "rounds": [round(one["ops_per_s"], 1) for one in rounds]}


def text_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def show(report):
    """Markdown: a row for each point, the median of each engine with its range and the processor time of its thread,
    and nowait's share of the best."""
    found = {}
    for one in report["rows"]:
        found.setdefault(one["case"], {})[one["way"]] = one
    print("| point | " + " | ".join(["nowait", *ENGINES]) + " | best of fio's | nowait / best (rounds) |")
    print("|---|" + "---|" * (len(ENGINES) + 3))
    for name, ways in found.items():
        best = max(ENGINES, key=lambda way: ways[way]["ops_per_s"])
        shares = [ours / theirs for ours, theirs in zip(ways["nowait"]["rounds"], ways[best]["rounds"])]
        cells = []
        for way in ["nowait", *ENGINES]:
            middle, rounds = ways[way]["ops_per_s"], ways[way]["rounds"]
            cpu = ways[way]["cpu_us_per_op"]["total"]
            cells.append(f"{middle:.0f} ({min(rounds) / middle:.2f}–{max(rounds) / middle:.2f}) [{cpu:.2f}]")
        share = ways["nowait"]["ops_per_s"] / ways[best]["ops_per_s"]
        mark = "**" if share < 0.97 else ""
        print(f"| {name} | {' | '.join(cells)} | {best} | {mark}{share:.2f}{mark} ({min(shares):.2f}–{max(shares):.2f}) |")


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--engine")
    asked.add_argument("--json")
    asked.add_argument("--show")
    asked.add_argument("--dir", default="/var/tmp")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--seconds", type=float, default=1.0)
    asked.add_argument("--seed", type=int, default=None)
    asked.add_argument("--points", default="*", help="a pattern as of a shell: 'direct reads *', '*cold*'")
    chosen = asked.parse_args()
    if chosen.show:
        with open(chosen.show, encoding="utf-8") as file:
            return show(json.load(file))
    if not chosen.engine or not chosen.json:
        asked.error("--engine and --json are needed")
    engines = {"nowait": f"external:{os.path.abspath(chosen.engine)}", **{name: name for name in ENGINES}}
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(1 << 31)
    draw = random.Random(seed)
    todo = [point for point in points() if fnmatch.fnmatch(case(point), chosen.points)]
    path = os.path.join(chosen.dir, f"nowait-fio-compare-{os.getpid()}.data")
    took = len(todo) * len(engines) * chosen.rounds * (chosen.seconds + 0.7) / 60
    print(f"{len(todo)} points, {chosen.rounds} rounds: about {took:.0f} minutes; seed {seed}", file=sys.stderr)
    done, loads = {}, []
    try:
        with open(path, "wb") as file:
            for _ in range(max(SIZES.values()) // MIB):
                file.write(random.randbytes(MIB))
        for number in range(chosen.rounds):
            for point in todo:
                loads.append(os.getloadavg()[0])
                order = draw.sample(list(engines), len(engines))
                # The offsets are the same for all engines of a round.
                offsets = draw.randrange(1 << 31)
                for way in order:
                    one = run(engines[way], path, point, chosen.seconds, offsets)
                    done.setdefault((point, way), []).append(one)
            print(f"round {number + 1} of {chosen.rounds}", file=sys.stderr)
    finally:
        os.unlink(path)
    rows = [row(point, way, done[point, way]) for point in todo for way in engines]
    environment = {"commit": text_of("git", "describe", "--always", "--dirty"),
                   "date": time.strftime("%FT%TZ", time.gmtime()),
                   "command": " ".join(["tools/fio_compare.py", *sys.argv[1:]]), "seed": seed}
    notes = [{"code": "fio", "text": f"{text_of('fio', '--version')}, Linux {platform.release()}, "
              f"{text_of('stat', '-f', '-c', '%T', chosen.dir)}, {os.cpu_count()} processors, "
              f"load {min(loads):.1f} to {max(loads):.1f}, seed {seed}, "
              f"commit {text_of('git', 'describe', '--always', '--dirty')}, {time.strftime('%F', time.gmtime())}"}]
    with open(chosen.json, "w", encoding="utf-8") as file:
        head = json.dumps({"environment": environment, "notes": notes})
        file.write(head[:-1] + ', "rows": [\n' + ",\n".join(json.dumps(one) for one in rows) + "\n]}\n")
    with open(chosen.json, encoding="utf-8") as file:
        show(json.load(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
