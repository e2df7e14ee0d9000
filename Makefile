# Thin on purpose: each target is a few cargo calls that can be typed by hand. Needs the Rust toolchain only.
# The default target prints this list.

CARGO ?= cargo
LOCKED := --locked

# All features but the command's `bench`, which brings a workspace of its own (make bench-test).
WITHOUT_BENCH := --no-default-features \
	--features nowait/tokio-test-util,nowait/stream,nowait/futures-io,nowait-log/tokio,nowait-cache/bytes,nowait-cache/stable-deref,nowait-cache/sim,nowait-probe/json
BENCH := cd bench && CARGO_TARGET_DIR=../target

.PHONY: help test bench-test soak c-tools loom locks python-test python-test-all stores-test integrations service docs book lint \
	adapters suites suites-check bench bench-check fio-engine fio-compare peers-test kernels kernels-smoke oldest-rust aarch64 asan tsan miri fuzz platforms platforms-run advisories semver release-check install \
	uninstall versions

help:
	@echo "make test    all tests: the workspace with all features, and the library with none; doc tests included"
	@echo "make bench-test   not part of make test: the workspace bench/, which is \`nowait bench\`, and the command with it"
	@echo "make loom    part of make test: the hand-over of operations, of commits of a log and of frames of a cache, in every order of the steps"
	@echo "make locks   part of make test: locks that each kind of operation takes (docs/scaling.md)"
	@echo "make python-test  part of make test, where there is python3-venv: the Python package, built, installed and tested"
	@echo "make python-test-all  the same with its large extras: torch and others"
	@echo "make stores-test  part of make test: the ObjectStore of crates/nowait-object-store, a workspace of its own"
	@echo "make integrations  not part of make test: DataFusion and a Ballista cluster through that store, small (bench/integrations/README.md)"
	@echo "make service  part of make integrations: an HTTP service on nowait and on tokio::fs, beside each other (bench/integrations/service)"
	@echo "make docs    tables in docs and README.md, from the JSON that they name; docs/measurements: losses.md, README.md"
	@echo "make book    docs/ as a searchable book, in target/book; needs mdbook and python3"
	@echo "make lint    rustfmt, clippy and rustdoc without warnings, with all features and with none; licences, where there is cargo-deny"
	@echo "make oldest-rust  the workspace type-checked by Rust 1.85, for this processor and aarch64 (docs/toolchains.md)"
	@echo "make aarch64  tests of nowait and nowait-log, built by Rust 1.85 for aarch64 and run by qemu-user (docs/toolchains.md)"
	@echo "make asan    tests of nowait, nowait-log and nowait-cache with AddressSanitizer (make tsan: ThreadSanitizer); needs a nightly toolchain (docs/toolchains.md)"
	@echo "make miri    tests that Miri can interpret; needs a nightly toolchain with miri (docs/toolchains.md)"
	@echo "make fuzz    each fuzz target for SECONDS (default: 60); needs a nightly toolchain (CONTRIBUTING.md)"
	@echo "make platforms  nowait, nowait-log, nowait-object-store and the Python package, type-checked for macOS and Windows (make platforms-run: also runs tests by Wine; docs/platforms.md)"
	@echo "make advisories   known vulnerabilities of dependencies, and withdrawn versions; needs cargo-deny and the network"
	@echo "make semver   breaks of the interface since BASE (default: the last tag); needs cargo-semver-checks"
	@echo "make release-check   the rehearsal of a release, into target/release-check; PART names parts (RELEASING.md)"
	@echo "make install   the C library, below PREFIX (default: /usr/local); make uninstall removes it (docs/guide/c.md)"
	@echo "make fio-engine   target/fio/lib/libnowait-fio.so, by which fio(1) uses the library; fetches fio's headers (docs/guide/c.md)"
	@echo "make fio-compare  nowait beside fio's own engines within fio, in about 20 minutes; needs python3; FIO_COMPARE are its options"
	@echo "make soak    minutes of random operations, kills and faults; not part of make test (soak/README.md)"
	@echo "make adapters  not part of make test: rustfmt, clippy, rustdoc and tests of integrations/, and lint of the Rust files of suites/;"
	@echo "               without the adapter for turso, which compiles for minutes; ADAPTERS_WITHOUT= includes it"
	@echo "make suites-check  part of make test: the driver of suites/, and its Python files"
	@echo "make suites  test suites of other projects on the library, in hours; not part of make test (suites/README.md)"
	@echo "make bench   the full benchmark of reads, on a file that it makes in this directory and removes"
	@echo "make peers-test  other runtimes, logs and caches as ways of \`nowait bench\` (bench/peers.md); not part of make test"
	@echo "make bench-check   instructions (by valgrind) and speed against bench/examples/bars.json; ARGS=--record records them"
	@echo "make versions  the library's speed against that of BASE (default: the last tag), in one program; ARGS (bench/versions/README.md)"
	@echo "make kernels  the tests on Linux 5.10, 6.1 and 6.12, in QEMU (docs/kernels.md); kernels-smoke: appends and the contract on 5.10"
	@echo
	@echo "Tests that mount file systems need root; elsewhere they say that they skip."
	@echo "NOWAIT_REQUIRE_MOUNTS=1 makes them fail instead of skipping."

test:
	$(CARGO) test $(LOCKED) --workspace $(WITHOUT_BENCH) --no-fail-fast
	$(CARGO) test $(LOCKED) -p nowait --no-default-features
	$(MAKE) c-tools
	$(MAKE) loom
	$(MAKE) locks
	$(MAKE) python-test
	$(MAKE) stores-test
	$(MAKE) suites-check

bench-test:
	$(BENCH) $(CARGO) test $(LOCKED) --no-fail-fast
	$(CARGO) test $(LOCKED) -p nowait-cli --test bench

# The tests of the C interface skip what they have no program for.
c-tools:
	@for tool in gcc:gcc g++:g++ clang:clang valgrind:valgrind cmake:cmake pkg-config:pkg-config nm:binutils \
		go:golang-go java:openjdk-25-jdk-headless; do \
		command -v $${tool%%:*} >/dev/null || echo "skipped: tests of nowait-c with $${tool%%:*}; Debian has it in $${tool##*:}"; \
	done; \
	crates/nowait-c/fio/build || echo "skipped: tests of nowait-c with fio; make fio-engine gets its headers"; \
	echo '#include <sqlite3.h>' | cc -E - >/dev/null 2>&1 || \
		echo "skipped: a test of nowait-c with sqlite3.h; Debian has it in libsqlite3-dev"

loom:
	RUSTFLAGS="--cfg nowait_loom" $(CARGO) test $(LOCKED) -p nowait --lib --target-dir target/loom loom_tests
	RUSTFLAGS="--cfg nowait_log_loom" $(CARGO) test $(LOCKED) -p nowait-log --lib --target-dir target/loom-log loom_tests
	RUSTFLAGS="--cfg nowait_cache_loom" $(CARGO) test $(LOCKED) -p nowait-cache --lib --target-dir target/loom-cache loom_tests

locks:
	RUSTFLAGS="--cfg nowait_count" $(CARGO) test $(LOCKED) -p nowait --test contract --target-dir target/count locks:: -- --nocapture

python-test:
	tools/python

python-test-all:
	tools/python all

STORES := cd crates/nowait-object-store && CARGO_TARGET_DIR=../../target/stores-build

stores-test:
	$(STORES) $(CARGO) test $(LOCKED) --all-features --no-fail-fast
	$(STORES) $(CARGO) check $(LOCKED) --no-default-features --features object-store-0-13

integrations:
	bench/integrations/check

service:
	bench/integrations/service/check

docs:
	$(BENCH) $(CARGO) run $(LOCKED) --example docs

book:
	tools/book

lint:
	@! git grep -nE '^(<{7}|>{7}) ' || { echo "lint: the lines above are conflict markers"; exit 1; }
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(LOCKED) --workspace --all-targets --all-features -- -D warnings
	$(BENCH) $(CARGO) fmt --check
	$(BENCH) $(CARGO) clippy $(LOCKED) --all-targets -- -D warnings
	$(CARGO) clippy $(LOCKED) -p nowait --all-targets --no-default-features -- -D warnings
	# Tests enable the features sim and forced-routes, so the library is checked without tests, too.
	$(CARGO) clippy $(LOCKED) -p nowait -p nowait-log -p nowait-copy -p nowait-probe -p nowait-cache -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) --workspace --no-deps --all-features
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) -p nowait --no-deps --no-default-features
	bench/versions/run --lint HEAD
	$(CARGO) test $(LOCKED) -p nowait-cli --test msrv
	cd crates/nowait-python && $(CARGO) fmt --check && $(CARGO) clippy $(LOCKED) --target-dir ../../target/python-build -- -D warnings
	$(STORES) $(CARGO) fmt --check
	$(STORES) $(CARGO) clippy $(LOCKED) --all-targets --all-features -- -D warnings
	$(STORES) RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) --no-deps --all-features
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny $(LOCKED) check licenses bans sources; \
	else echo "skipped: no cargo-deny, so licences and sources of dependencies are unchecked (deny.toml)"; fi

advisories:
	$(CARGO) deny $(LOCKED) check advisories

# Crates that were not in BASE have nothing to be compared with: PACKAGES leaves them out.
PACKAGES ?= nowait nowait-log nowait-probe nowait-copy nowait-cache
BASE ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
semver:
	@test -n "$(BASE)" || { echo "no tag yet: make semver BASE=REVISION"; exit 2; }
	$(CARGO) semver-checks $(PACKAGES:%=--package %) --all-features --baseline-rev $(BASE)
	$(STORES) $(CARGO) semver-checks --all-features --baseline-rev $(BASE)

release-check:
	tools/release/check $(PART)

# Seconds of each test, and states of the log's model: some 25 minutes in all.
SOAK_SECONDS ?= 60
SOAK_STATES ?= 1000000
soak: export NOWAIT_SOAK_SECONDS := $(SOAK_SECONDS)
soak:
	cd soak && $(CARGO) clippy $(LOCKED) --all-targets -- -D warnings
	cd soak && $(CARGO) test $(LOCKED) --release -- --test-threads=1
	NOWAIT_LOG_STATES=$(SOAK_STATES) $(CARGO) test $(LOCKED) --release -p nowait-log --test log_foul_play no_foul
	$(CARGO) test $(LOCKED) --release -p nowait-cli --test copy_soak -- --ignored

# Builds of the suites use the same folder. turso compiles for minutes: ADAPTERS_WITHOUT= checks its adapter, too.
ADAPTERS := cd integrations && CARGO_TARGET_DIR=../target/suites/target
ADAPTERS_WITHOUT ?= --exclude nowait-turso

adapters:
	$(ADAPTERS) $(CARGO) fmt --check
	$(ADAPTERS) $(CARGO) clippy $(LOCKED) --workspace $(ADAPTERS_WITHOUT) --all-targets -- -D warnings
	$(ADAPTERS) RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) --workspace $(ADAPTERS_WITHOUT) --no-deps
	$(ADAPTERS) $(CARGO) test $(LOCKED) --workspace $(ADAPTERS_WITHOUT) --no-fail-fast
	cd suites && $(CARGO) fmt --check && rustfmt --check --edition 2024 */attached.rs
	cd suites && $(CARGO) clippy $(LOCKED) --target-dir ../target/suites/target --all-targets -- -D warnings

suites-check:
	suites/check

suites:
	suites/run --record

oldest-rust:
	tools/oldest-rust

aarch64:
	tools/aarch64

asan:
	tools/sanitizers/run address

tsan:
	tools/sanitizers/run thread

miri:
	tools/sanitizers/run miri

# Installed in `target`, not for the user.
target/cargo-fuzz/bin/cargo-fuzz:
	$(CARGO) install cargo-fuzz --version 0.13.2 --locked --root target/cargo-fuzz

SECONDS ?= 60
fuzz: target/cargo-fuzz/bin/cargo-fuzz
	cd fuzz && export PATH="$(CURDIR)/$(<D):$$PATH" && for target in $$(cargo fuzz list); do \
		cargo "+$${NOWAIT_NIGHTLY:-nightly}" fuzz run $$target -- -max_total_time=$(SECONDS) -len_control=0 -max_len=4096 || exit; \
	done

platforms:
	tools/platforms/check

platforms-run:
	tools/platforms/check --run

install:
	$(CARGO) build $(LOCKED) --release -p nowait-c
	crates/nowait-c/install install

uninstall:
	crates/nowait-c/install uninstall

fio-engine:
	$(CARGO) build $(LOCKED) --release -p nowait-c
	crates/nowait-c/fio/build --fetch
	PREFIX=$(CURDIR)/target/fio crates/nowait-c/install install

FIO_COMPARE ?= --json target/fio/compare.json
fio-compare: fio-engine
	tools/fio_compare.py --engine target/fio/lib/libnowait-fio.so $(FIO_COMPARE)

bench:
	$(CARGO) run $(LOCKED) --release -- bench reads cached gather

bench-check:
	$(BENCH) $(CARGO) build $(LOCKED) --release --bins --example instructions --example bench_check
	target/release/examples/bench_check $(ARGS)

versions:
	@test -n "$(BASE)" || { echo "no tag yet: make versions BASE=COMMIT"; exit 2; }
	bench/versions/run $(BASE) $(ARGS)

peers-test:
	$(BENCH) $(CARGO) clippy $(LOCKED) --features peers --all-targets -- -D warnings
	$(BENCH) $(CARGO) test $(LOCKED) --features peers --test peers

kernels:
	tools/kernels/run

kernels-smoke:
	tools/kernels/run smoke
