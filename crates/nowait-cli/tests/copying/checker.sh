#!/usr/bin/env bash
# Compares two trees without any code of ours: find, stat, getfattr, getfacl, sha256sum, filefrag and xfs_io.
#
#     checker.sh compare LEFT RIGHT   prints each difference; exit code 1 if there is one
#     checker.sh across LEFT RIGHT    the same on two file systems, or one that allocates as it likes
#     checker.sh manifest DIR         prints all that is compared, a line a fact
#
# Facts of an entry: kind, mode, owner, group, size, times of access and of modification, links and the
# first name of the same inode, the text of a symlink, the number of a device, extended attributes, access
# control lists, bytes, and where a file has data. (Sizes and links of directories depend on their history.)
#
# `across` has no lists of extents: xfs shows room ahead of a writer as written. Both also want that no file of
# RIGHT takes 128 KiB more of the disk than its counterpart in LEFT. Unwritten extents are holes to readers, but
# they take room.
#
# An entry must be reachable by a path, from its tree's root, shorter than PATH_MAX.
set -euo pipefail
export LC_ALL=C

# More of the disk than LEFT that is no difference, in sectors: file systems allocate ahead of writers.
readonly SLACK_SECTORS=256

fail() {
    echo "checker.sh: $*" >&2
    exit 2
}

for tool in find stat getfattr getfacl sha256sum filefrag xfs_io; do
    command -v "$tool" >/dev/null || fail "there is no $tool; install findutils, coreutils, attr, acl, e2fsprogs, xfsprogs"
done

# Names of the entries below here, ended by NUL; those of some kinds if arguments for find say so.
names() { find . "$@" -print0 | sort -z; }

# Sets `quoted` to a name that is one word, whatever is in it.
quote() { printf -v quoted '%q' "$1"; }

# What the inode says.
inodes() {
    local -A first=()
    local name kind mode owner group size links accessed modified inode target device quoted
    while IFS=' ' read -r -d '' inode name; do
        quote "$name"
        : "${first[$inode]:=$quoted}"
    done < <(find . '!' -type d -links +1 -printf '%i %p\0' | sort -z -k 2)
    while IFS= read -r -d '' name && IFS=/ read -r -d '' kind mode owner group size links inode accessed modified &&
        IFS= read -r -d '' target; do
        device=-
        case $kind in
            d) size=- links=- ;;
            b | c) device=$(stat -c '%t:%T' -- "$name") ;;
        esac
        [ -z "${first[$inode]:-}" ] || links+=" as ${first[$inode]}"
        quote "$target"
        target=$quoted
        quote "$name"
        echo "$quoted inode: kind $kind, mode $mode, owner $owner:$group, size $size, accessed $accessed," \
            "modified $modified, links $links, target $target, device $device"
    done < <(find . -printf '%p\0%y/%m/%U/%G/%s/%n/%i/%A@/%T@\0%l\0')
}

# Extended attributes, among them capabilities and the lists' own bytes. An entry without any prints nothing.
attributes() {
    names | xargs -0 -r getfattr -h -d -m - -e hex --absolute-names -- |
        paragraph 'xattr'
}

# Symlinks have no lists.
lists() {
    names '!' -type l | xargs -0 -r getfacl -n -p -E -- | paragraph 'acl'
}

# Paragraphs as lines, each with the name in front.
paragraph() {
    local what=$1 line name=
    while IFS= read -r line; do
        case $line in
            '# file: '*) name=${line#\# file: } ;;
            '' | '# owner: '* | '# group: '* | '# flags: '*) ;;
            *) echo "$name $what: $line" ;;
        esac
    done
}

contents() {
    local name sum quoted
    while IFS=' ' read -r -d '' sum name; do
        quote "${name# }"
        echo "$quoted bytes: $sum"
    done < <(
        names -type f -size -256M | xargs -0 -r sha256sum -z --
        # Reading a hole of a terabyte takes minutes.
        names -type f -size +255M | while IFS= read -r -d '' name; do
            sum=$(data_sum "$name")
            printf '%s  %s\0' "${sum%% *}" "$name"
        done
    )
}

# The checksum of a large sparse file's data, with its ranges.
data_sum() {
    local from to
    while read -r from to; do
        echo "$from $to"
        dd if="$1" iflag=skip_bytes,count_bytes bs=64K skip="$from" count=$((to - from)) status=none
    done < <(seek_ranges "$1") | sha256sum
}

# Where there is data, by SEEK_DATA and SEEK_HOLE, as "from to" in bytes.
seek_ranges() {
    local what at from=
    while read -r what at; do
        case $what in
            DATA) [ "$at" = EOF ] || from=$at ;;
            HOLE)
                [ -z "$from" ] || echo "$from $at"
                from=
                ;;
        esac
    done < <(xfs_io -r -c 'seek -a -r 0' -- "$1")
}

# The same by the file system's own list of extents, without those that are unwritten; nothing where it has none. On
# a file with inline data, too, there are no blocks.
extent_ranges() {
    filefrag -s -b512 -v -- "$1" 2>/dev/null | while IFS=: read -r number logical _ _ _ flags; do
        [[ $number =~ ^\ *[0-9]+$ && $flags != *unwritten* ]] || continue
        read -r from to <<<"${logical/../ }"
        echo $((from * 512)) $((to * 512 + 512))
    done
}

# Joins neighbours, and cuts off at the size.
joined() {
    local size=$1 from to start= end=
    while read -r from to; do
        to=$((to > size ? size : to))
        [ "$from" -lt "$to" ] || continue
        if [ "$from" = "$end" ]; then
            end=$to
            continue
        fi
        [ -z "$start" ] || printf '%s-%s ' "$start" "$end"
        start=$from end=$to
    done
    [ -z "$start" ] || printf '%s-%s' "$start" "$end"
}

maps() {
    local name size quoted
    while IFS=' ' read -r -d '' size name; do
        quote "$name"
        echo "$quoted data: $(seek_ranges "$name" | joined "$size")"
        echo "$quoted extents: $(extent_ranges "$name" | joined "$size")"
    done < <(find . -type f -size +0 -printf '%s %p\0')
}

manifest() {
    cd -- "$1"
    sync -f .
    # First: what follows reads.
    inodes
    attributes
    lists
    maps
    contents
}

# Sectors on the disk of each regular file.
rooms() {
    local name room quoted
    cd -- "$1"
    while IFS=' ' read -r -d '' room name; do
        quote "$name"
        echo "$room $quoted"
    done < <(find . -type f -printf '%b %p\0')
}

compare() {
    local differs=0 room name
    [ -d "$1" ] && [ -d "$2" ] || fail "compare takes two directories: $1, $2"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (manifest "$1") >"$work/left" || fail "no manifest of $1"
    (manifest "$2") >"$work/right" || fail "no manifest of $2"
    [ -s "$work/left" ] || fail "nothing to compare in $1"
    if [ "$3" = across ]; then sed -i '/ extents: /d' "$work/left" "$work/right"; fi
    sort -o "$work/left" "$work/left"
    sort -o "$work/right" "$work/right"
    diff "$work/left" "$work/right" || differs=1

    declare -A limit=()
    while read -r room name; do limit[$name]=$((room + SLACK_SECTORS)); done < <(rooms "$1")
    while read -r room name; do
        if [ -n "${limit[$name]:-}" ] && [ "$room" -gt "${limit[$name]}" ]; then
            echo "$name takes $room sectors of the disk, its counterpart $((limit[$name] - SLACK_SECTORS))"
            differs=1
        fi
    done < <(rooms "$2")
    return $differs
}

case ${1:-} in
    manifest) manifest "${2:?a directory}" ;;
    compare | across) compare "${2:?two directories}" "${3:?two directories}" "$1" ;;
    *) fail "compare LEFT RIGHT, across LEFT RIGHT, or manifest DIR" ;;
esac
