#!/usr/bin/env bash
# Installs what a fresh Debian machine with only Rust lacks; says nothing when nothing is missing.
#
#   scripts/install-tools.sh build     a C linker, for `make run`
#   scripts/install-tools.sh test      and rustfmt and clippy, for `make test`
#   scripts/install-tools.sh verify    and cargo-deny, for `make verify`
set -euo pipefail
cd "$(dirname "$0")/.."

# Built here because packaged copies are too old to know today's licence names. The debug build takes
# a third of the time, and a check of our few hundred crates takes a second either way.
CARGO_DENY_VERSION=0.20.2

say() { printf 'install-tools: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif has sudo; then
        sudo "$@"
    else
        fail "need root for: $*; run it as root, or install sudo"
    fi
}

install_packages() {
    has apt-get || fail "missing: $*; this script installs with apt-get only, please install them"
    say "installing Debian packages: $*"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >&2
}

need_cargo() {
    has cargo || fail "cargo is missing; install Rust from https://rustup.rs, then run this again"
    # Asking for the version makes rustup fetch the compiler that rust-toolchain.toml names.
    cargo --version >/dev/null || fail "cargo does not start; see the message above"
}

need_linker() {
    if ! has cc; then
        install_packages gcc libc6-dev
    fi
}

need_component() {
    cargo "$2" --version >/dev/null 2>&1 && return
    has rustup || fail "missing: cargo $2; install the $1 that belongs to your Rust"
    say "installing the Rust component $1"
    rustup component add "$1" >&2
}

need_cargo_deny() {
    # An older one may not read our deny.toml, so the version counts.
    case "$(cargo deny --version 2>/dev/null)" in
    "cargo-deny $CARGO_DENY_VERSION") return ;;
    esac
    say "building cargo-deny $CARGO_DENY_VERSION (a few minutes, once)"
    cargo install --locked --debug --force --version "$CARGO_DENY_VERSION" cargo-deny >&2
}

what="${1:-test}"
case "$what" in
build | test | verify) ;;
*) fail "unknown set '$what'; allowed: build, test, verify" ;;
esac

need_cargo
need_linker
if [ "$what" != build ]; then
    need_component rustfmt fmt
    need_component clippy clippy
fi
if [ "$what" = verify ]; then
    need_cargo_deny
fi
