# Paths and functions of the scripts in this folder, which source it.
# shellcheck shell=bash
set -euo pipefail
umask 022

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
release=$project/tools/release
out=$project/target/release-check
dist=$out/dist
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$project/crates/nowait-cli/Cargo.toml" | head -n 1)
export RELEASE_CHECK_STARTED=${RELEASE_CHECK_STARTED:-$(date +%s)}
mkdir -p "$dist"
cd "$project"

say() { printf 'release-check: %4d s  %s\n' "$(($(date +%s) - RELEASE_CHECK_STARTED))" "$*"; }
fail() {
    printf 'release-check: %s\n' "$*" >&2
    exit 1
}
need() { command -v "$1" >/dev/null || fail "no $1: apt-get install $2"; }

# quiet COMMAND...: shows the command's output only if it fails.
quiet() {
    local log
    log=$(mktemp "$out/log.XXXXXX")
    "$@" >"$log" 2>&1 || { cat "$log" >&2; rm "$log"; fail "failed: $*"; }
    rm "$log"
}

# Flags of rustc that keep the paths of this machine out of what it builds.
remap="--remap-path-prefix=$project=/usr/src/nowait-$version"
remap+=" --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src=/usr/src/cargo"

# no_paths FILE: fails if there are any.
no_paths() {
    ! grep -qaF -e "$project" -e "${CARGO_HOME:-$HOME/.cargo}" "$1" || fail "$1 contains paths of this machine"
}

# build TARGET_DIR ARGUMENTS...: cargo, as for a release, with line tables for the debug file. Fat LTO halves the
# relocations of the command (10,318 to 5,257), so that it starts faster. Builds from source omit it: it takes longer.
build() {
    local target_dir=$1
    shift
    RUSTFLAGS="${RUSTFLAGS_OF_TARGET:-} $remap" CARGO_PROFILE_RELEASE_DEBUG=line-tables-only \
        CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 \
        quiet cargo build --locked --release --target-dir "$target_dir" "$@"
}

# strip_apart PROGRAM OUTPUT: writes the stripped program, which refers to its debug information in OUTPUT.debug.
strip_apart() {
    objcopy --only-keep-debug --compress-debug-sections "$1" "$2.debug"
    strip --strip-all -o "$2" "$1"
    (cd "$(dirname "$2")" && objcopy --add-gnu-debuglink="$(basename "$2").debug" "$2")
    chmod 644 "$2.debug"
    no_paths "$2"
}

# Puts zig, a C compiler for all of our targets, into $ZIG: the wheel `ziglang`, in target/python.
zig() {
    [ -x "$project/target/python/bin/python" ] || quiet python3 -m venv "$project/target/python"
    quiet "$project/target/python/bin/python" -m pip install --disable-pip-version-check ziglang
    export ZIG="$project/target/python/bin/python -m ziglang"
}

# cross TARGET ZIG_TARGET: sets the environment so that cargo builds for another target, and zig links. Without the
# target's standard library (`rustup target add TARGET` installs it), Debian's Rust replaces this machine's.
cross() {
    local name
    name=$(tr a-z- A-Z_ <<<"$1")
    zig
    export "CARGO_TARGET_${name}_LINKER=$project/tools/zig-cc" ZIG_TARGET=$2
    # zig has the start files and the unwinder of musl.
    case $1 in *-musl) RUSTFLAGS_OF_TARGET="-C link-self-contained=no" ;; esac
    [ ! -d "$(rustc --print target-libdir --target "$1")" ] || return 0
    say "no standard library of $1: Debian's Rust has or builds it (tools/oldest-rust)"
    quiet tools/oldest-rust --toolchain-only
    export PATH=$project/target/oldest-rust/bin:$PATH
    unset RUSTUP_TOOLCHAIN
    case $1 in *-musl) export RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD="std panic_abort" ;; esac
}

# root NAME PACKAGES...: makes a minimal Debian of this machine's release with these packages, in $out/roots/NAME.
root() {
    local name=$1 apt=$out/mmdebstrap mirror signed codename
    shift
    [ "$(id -u)" -eq 0 ] || fail "a clean root needs chroot(2): run this part as root"
    [ ! -d "$out/roots/$name" ] || return 0
    source tools/private_apt.sh
    mkdir -p "$out/roots" "$apt"
    if [ ! -x "$apt/usr/bin/mmdebstrap" ]; then
        say "downloading mmdebstrap into target/ (needs the network)"
        touch "$apt/status"
        configure "$apt/apt" "$apt/status" "$mirror $codename $signed"
        update "$apt/apt"
        (cd "$apt" && quiet apt-get -c apt/apt.conf -q download mmdebstrap && dpkg-deb -x mmdebstrap_*.deb .)
    fi
    say "clean root: Debian $codename, essential packages and: ${*:-none}"
    rm -rf "$out/roots/$name.new"
    quiet "$apt/usr/bin/mmdebstrap" --variant=essential --mode=root ${*:+--include="$(IFS=, && echo "$*")"} \
        "$codename" "$out/roots/$name.new" "deb $mirror $codename main"
    mv "$out/roots/$name.new" "$out/roots/$name"
}

# fresh NAME: prints a temporary copy of a root, which the script's trap removes.
temporary=$(mktemp -d /var/tmp/nowait-release.XXXXXX)
finish() {
    # Only what is mounted below our own folder.
    awk -v below="$temporary/" 'index($2, below) == 1 { print $2 }' /proc/mounts | sort -r |
        xargs -r -n 1 umount || return
    rm -rf --one-file-system "$temporary"
}
trap finish EXIT
fresh() {
    local copy
    copy=$(mktemp -d "$temporary/root.XXXX")
    chmod 755 "$copy"
    cp -a --reflink=auto "$out/roots/$1/." "$copy"
    mkdir -p "$copy/proc" "$copy/trial"
    mount -t proc proc "$copy/proc"
    mount -t tmpfs -o mode=1777 tmpfs "$copy/dev/shm" 2>/dev/null || true
    echo "$copy"
}
# in_root ROOT COMMAND...: with the root's own environment, in its folder /trial.
in_root() {
    local root=$1
    shift
    env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive chroot "$root" sh -ec 'cd /trial && exec "$@"' sh "$@"
}
