# Two commands matter: `make run` and `make test`. Each installs what is missing first.

EXAMPLE ?= examples/small-cell
BENCH ?=
TARGET = $(or $(CARGO_TARGET_DIR),target)
BINARY = $(TARGET)/release/cell

MACHINES ?=
LISTEN ?= 127.0.0.1:7070
DNS ?=

.PHONY: help run pack-example dist test test-v2 verify fix bench campaign

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## build cell quickly and start a cell on this machine in the foreground
	@scripts/install-tools.sh build
	@echo "building cell; the first time takes four minutes on two cores" >&2
	cargo build --profile quick --locked -p cellwright-cli -p cellwright-shim
	$(TARGET)/quick/cell dev --data-dir $(TARGET)/cell-dev $(if $(MACHINES),--machines $(MACHINES)) $(if $(DNS),--dns $(DNS)) --listen $(LISTEN)

pack-example: ## build the release binary and pack the bundled example cell
	@scripts/install-tools.sh build
	cargo build --release --locked -p cellwright-cli
	cargo run --quiet --release --locked -p cellwright-cli --bin cell -- sim pack --trace example:$(EXAMPLE)

dist: ## release tarball in dist/, checked
	@scripts/install-tools.sh build
	cargo build --release --locked -p cellwright-cli -p cellwright-shim
	scripts/check-dist.sh "$$(scripts/dist.sh $(BINARY))"

test: ## everything CI runs; never writes into the sources
	@scripts/install-tools.sh test
	@scripts/check.sh tidy fmt clippy docs doctests tests api powercut advisories

test-v2: ## containers under control groups v2 alone, in a guest that CELL_GUEST starts
	@scripts/install-tools.sh test
	@scripts/check.sh cgroup2

verify: ## static checks only: tidy, format, lints, licences, sources, advisories; never writes
	@scripts/install-tools.sh verify
	@scripts/check.sh tidy fmt clippy deny advisories

fix: ## format the sources and apply what clippy can fix
	@scripts/install-tools.sh test
	cargo fmt --all
	cargo clippy --fix --allow-dirty --allow-staged --workspace --all-targets -- -D warnings
	cargo fmt --all

bench: ## run the benchmarks and record reports in bench/reports; BENCH=args for the program
	@scripts/install-tools.sh bench
	cargo run --release --locked -p cellwright-bench -- $(BENCH)

campaign: ## the long run: 10,000 seeds, 1,000 power cuts, 30 minutes of faults, a minute of fuzzing a parser
	@scripts/install-tools.sh test
	@scripts/campaign.sh $(PARTS)
