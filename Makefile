# Two commands matter: `make run` and `make test`. Each installs what is missing first.

EXAMPLE ?= examples/small-cell
BENCH ?=

.PHONY: help run test verify fix bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## build the release binary and pack the bundled example cell
	@scripts/install-tools.sh build
	@echo "building cell (release)" >&2
	cargo build --release --locked -p cellwright-cli
	cargo run --quiet --release --locked -p cellwright-cli --bin cell -- sim pack --trace example:$(EXAMPLE)

test: ## everything CI runs; never writes into the sources
	@scripts/install-tools.sh test
	@scripts/check.sh tidy fmt clippy docs doctests tests

verify: ## static checks only: tidy, format, lints, licences, sources, advisories; never writes
	@scripts/install-tools.sh verify
	@scripts/check.sh tidy fmt clippy deny advisories

fix: ## format the sources and apply what clippy can fix
	@scripts/install-tools.sh test
	cargo fmt --all
	cargo clippy --fix --allow-dirty --allow-staged --workspace --all-targets -- -D warnings
	cargo fmt --all

bench: ## run the benchmarks and record reports in bench/reports; BENCH=args for the program
	@scripts/install-tools.sh build
	cargo run --release --locked -p cellwright-bench -- $(BENCH)
