# Paths and helpers of the scripts in this folder; each of them sources it. See docs/kernels.md.
# shellcheck shell=bash
set -euo pipefail

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$tools/../.." && pwd)
# Everything that is downloaded, built or written.
work=$project/target/kernels
mkdir -p "$work"

# Host programs that were missing are unpacked here by `fetch`, and found behind the installed ones.
host=$work/host
PATH=$PATH:/usr/sbin:/sbin:$host/usr/bin:$host/usr/sbin:$host/bin:$host/sbin

# The kernels, oldest first, and the Debian release that packages each.
ALL_KERNELS="5.10 6.1 6.12"
release_of() {
    case $1 in
    5.10) echo bullseye ;;
    6.1) echo bookworm ;;
    6.12) echo trixie ;;
    *) fail "no Debian release is known for kernel $1; known: $ALL_KERNELS" ;;
    esac
}

say() { printf '%s\n' "kernels: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

# Sets `hosted` to the command that runs a host program; one that was unpacked here finds its libraries here. (The host's
# own programs must not: they would mix two versions of a library.)
find_hosted() {
    local path
    path=$(command -v "$1") || fail "$1 is missing: run tools/kernels/fetch"
    hosted=("$path")
    local triplet
    triplet=$(uname -m)-linux-gnu
    case $path in
    "$host"/*) hosted=(env "LD_LIBRARY_PATH=$host/usr/lib/$triplet:$host/lib/$triplet" "$path") ;;
    esac
}

# Runs a host program so.
hosted() {
    local hosted
    find_hosted "$1"
    "${hosted[@]}" "${@:2}"
}
