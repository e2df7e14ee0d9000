#!/usr/bin/env python3
"""Reads a log by docs/log-format.md, without the library: read_log.py DIR. Not read are files without
a whole header, and beside a broken link of the chain: there it gives up."""
import os, struct, sys

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def page(data, magic):
    """The fields of a page, or half of one, behind its version; none if its checksum is wrong."""
    if data[:8] == magic and struct.unpack_from("<I", data, 8)[0] == crc32c(data[12:]):
        assert struct.unpack_from("<I", data, 12)[0] == 2, "another version of the format"
        return data[16:]


def segment(data, log_id, number):
    for half in data[:4096], data[6144:8192]:
        fields = page(half, b"nwlogseg")
        if fields and fields[:16] == log_id:
            names = "number epoch bytes first watermark before end last lost_from oldest time previous_time".split()
            header = dict(zip(names, struct.unpack_from("<12Q", fields, 16)))
            if header["number"] == number:
                seed = crc32c(log_id + struct.pack("<QQ", number, header["epoch"]))
                return dict(header, seed=seed, data=data[: header["bytes"]])


def block(of, at):
    """The block whose whole header is there: first LSN, number of records, watermark, closed, the
    offset behind it; its whole records; whether all are."""
    data = of["data"]
    if data[at : at + 4] != b"nwbk" or crc32c(data[at + 8 : at + 64], of["seed"]) != struct.unpack_from("<I", data, at + 4)[0]:
        return None
    epoch, offset, first, watermark, length, count, closed, sum_ = struct.unpack_from("<4Q4I", data, at + 8)
    if epoch != of["epoch"] or offset != at or first < of["first"]:
        return None
    place, frames, good = at + 64, b"", []
    for lsn in range(first, first + count):
        if place + 9 > at + 64 + length:
            break
        crc, size, kind = struct.unpack_from("<IIB", data, place)
        end = place + 9 + size
        if end > at + 64 + length:
            break
        frames += data[place : place + 9]
        is_whole = crc32c(data[place + 4 : end], of["seed"] ^ lsn & 0xFFFFFFFF) == crc
        good.append((lsn, kind, data[place + 9 : end]) if is_whole else None)
        place = end
    is_whole = place == at + 64 + length and len(good) == count and crc32c(frames) == sum_
    if not is_whole:
        good = good[: good.index(None)] if None in good else good if len(good) < count else []
    records = [record for record in good if record]
    return first, count, watermark, closed, (at + 64 + length + 4095) // 4096 * 4096, records, len(records) == count


def blocks(of, at):
    """Blocks from there on, from one whole header to the next."""
    while at < len(of["data"]):
        found = block(of, at)
        if found:
            yield found
        at = found[4] if found else at + 4096


def read(path):
    names = sorted(os.listdir(path))
    load = lambda name: open(os.path.join(path, name), "rb").read()
    control = load("control")
    control = page(control[:4096], b"nwlogctl") or page(control[4096:], b"nwlogctl")
    head, recorded, count = struct.unpack_from("<3Q", control, 88)
    epochs = [struct.unpack_from("<2Q", control, 112 + 16 * index) for index in range(count)]
    newest = epochs[-1][0] if epochs else 0
    # Records of an epoch count up to where the first of the newer ones began.
    last_of = lambda epoch: next((last for newer, last in epochs if newer > epoch), 1 << 63)
    headers = {}
    for name in (name for name in names if name.endswith(".seg")):
        header = segment(load(name), control[:16], int(name[:-4]))
        if header:
            headers[header["number"]] = dict(header, name=name)
    chain = [max(headers.values(), key=lambda header: (header["epoch"], header["number"]))]
    while chain[0]["before"] in headers:
        chain.insert(0, headers[chain[0]["before"]])
    is_headless = (chain[-1]["epoch"], chain[-1]["number"]) < (newest, head)
    while len(chain) > 1 and chain[-1]["first"] > last_of(chain[-1]["epoch"]):
        chain.pop()
    # What was durable when the control file was written may have been cut off since.
    recorded = min([recorded] + [header["last"] for header in chain if header["epoch"] > newest])
    watermark = max([recorded] + [header["watermark"] for header in chain])
    # What a segment says about records behind the place where the next one continues was cut off.
    lasts = [behind["last"] for behind in chain[1:]] + [last_of(chain[-1]["epoch"])]
    said = [min(found[2], last) for header, last in zip(chain, lasts) for found in blocks(header, 4096)]
    watermark = max([watermark] + said)
    records, gaps, torn, closed, broken = {}, set(), None, 0, False
    next_lsn = chain[0]["first"]
    for header, behind in zip(chain, chain[1:] + [None]):
        end = behind["end"] if behind else len(header["data"])
        last = (behind["lost_from"] - 1 if behind["lost_from"] else behind["last"]) if behind else lasts[-1]
        at, closed = 4096, 0
        while at < end and not broken and (behind or next_lsn <= last):
            found = block(header, at)
            whole = {record[0] for record in found[5]} if found else set()
            if not found or found[0] != next_lsn or any(
                lsn <= last and lsn not in whole for lsn in range(found[0], found[0] + found[1])
            ):
                break
            records.update((record[0], record) for record in found[5] if record[0] <= last)
            next_lsn, closed, at = found[0] + found[1], found[3], found[4]
        if not behind and next_lsn > last:
            next_lsn, at = last + 1, end
        if behind and not broken and next_lsn > last:
            gaps |= set(range(last + 1, behind["last"] + 1))
            next_lsn = behind["first"]
            continue
        later = list(blocks(header, at if not broken else 4096))
        if not broken and watermark < next_lsn:
            data = header["data"][at : at + 32]
            begun = data[:4] == b"nwbk" and struct.unpack_from("<3Q", data, 8) == (header["epoch"], at, next_lsn)
            torn = (header["name"], at) if (begun or later) and not is_headless else None
            break
        broken = True
        for found in later:
            if found[6] or found[0] <= watermark:
                records.update((record[0], record) for record in found[5] if record[0] <= last)
    if broken:
        closed = 0 if max(records, default=0) < watermark else closed
        while next_lsn <= watermark or next_lsn in records:
            next_lsn += 1
        records = {lsn: record for lsn, record in records.items() if lsn < next_lsn}
    first = chain[0]["first"]
    lost = [lsn for lsn in range(first, next_lsn) if lsn not in records and lsn not in gaps]
    return first, next_lsn, torn, lost, [records[lsn] for lsn in sorted(records)]


if __name__ == "__main__":
    first, next_lsn, torn, lost, records = read(sys.argv[1])
    print("first", first, "next", next_lsn, "torn", *(torn or ["nowhere"]))
    for lsn in lost:
        print("lost", lsn)
    for lsn, kind, data in records:
        print("record", lsn, kind, data.hex())
