#!/usr/bin/env bash
# Installs what a fresh Debian machine with only Rust lacks; says nothing when nothing is missing.
#
#   scripts/install-tools.sh build     a C linker and, as root, a container runtime, for `make run`
#   scripts/install-tools.sh test      and rustfmt, clippy, a small root for containers, QEMU and a
#                                      kernel for a guest, tools for trial networks and power cuts,
#                                      a registry of images, a browser and DuckDB, for `make test`
#   scripts/install-tools.sh verify    and cargo-deny, for `make verify`
#   scripts/install-tools.sh bench     a C linker and etcd, a peer of `make bench`
set -euo pipefail
cd "$(dirname "$0")/.."

# Built here because packaged copies are too old to know today's licence names. The debug build takes
# a third of the time, and a check of our few hundred crates takes a second either way.
CARGO_DENY_VERSION=0.20.2
DUCKDB_VERSION=2.0.0
MOTO_VERSION=5.1.4

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

# Hosts in tests are network namespaces. For those who are not root the tests that need these say
# that they are skipped; for root they fail, see CONTRIBUTING.md.
need_network_tools() {
    local missing=()
    has ip || missing+=(iproute2)
    has iptables || missing+=(iptables)
    has dig || missing+=(bind9-dnsutils)
    has curl || missing+=(curl)
    # What stands in for tasks that do what no shell can, and for other accounts.
    has perl || missing+=(perl)
    has setpriv || missing+=(util-linux)
    has mkfs.xfs || missing+=(xfsprogs)
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    [ ${#missing[@]} = 0 ] && return
    if [ "$(id -u)" = 0 ] && has apt-get; then
        install_packages "${missing[@]}"
    else
        say "missing: ${missing[*]}; some tests will be skipped, or fail for root"
    fi
}

# Tasks run in containers where the agent is root and finds a runtime; elsewhere as plain processes,
# and the agent says so. A machine on which it cannot be installed still runs a cell.
need_container_runtime() {
    has runc && return
    if [ "$(id -u)" = 0 ] && has apt-get; then
        install_packages runc
    elif [ "$(id -u)" = 0 ]; then
        say "missing: runc; tasks will run without containers"
    fi
}

# Containers of tests get their programs from it. Linked statically, it needs no library in them.
need_busybox() {
    [ -e /bin/busybox ] && return
    if [ "$(id -u)" = 0 ] && has apt-get; then
        install_packages busybox-static
    else
        say "missing: busybox; tests of containers will be skipped"
    fi
}

# A virtual machine runs as a task in a test: QEMU, and a kernel for the guest, which is unpacked and
# not installed. Both are for amd64; the processor is emulated.
need_guest() {
    [ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || return 0
    local place="${XDG_CACHE_HOME:-$HOME/.cache}/cellwright/guest" work kernel
    if ! has qemu-system-x86_64; then
        if [ "$(id -u)" = 0 ]; then
            install_packages qemu-system-x86
        else
            say "missing: qemu-system-x86; the test of virtual machines will be skipped"
            return
        fi
    fi
    compgen -G "$place/boot/vmlinuz-*" >/dev/null && return
    kernel="$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        awk '/Depends: linux-image-/ { print $2; exit }')"
    if [ -z "$kernel" ]; then
        as_root apt-get update -qq
        kernel="$(apt-cache depends linux-image-cloud-amd64 |
            awk '/Depends: linux-image-/ { print $2; exit }')"
    fi
    say "unpacking $kernel for a guest"
    work="$(mktemp -d)"
    if (cd "$work" && apt-get download -qq "$kernel" >&2 && dpkg-deb -x ./*.deb unpacked); then
        mkdir -p "$place/boot"
        cp "$work"/unpacked/boot/vmlinuz-* "$place/boot/"
    else
        say "$kernel cannot be fetched; the test of virtual machines will be skipped, or fail for root"
    fi
    rm -rf "$work"
}

# The console is tested in a real browser. Without it those tests say that they are skipped.
need_browser() {
    has chromium && has chromedriver && return
    if [ "$(id -u)" = 0 ] && has apt-get; then
        install_packages chromium chromium-driver
    else
        say "missing: chromium, chromium-driver; tests of the console will be skipped"
    fi
}

need_cargo_deny() {
    # An older one may not read our deny.toml, so the version counts.
    case "$(cargo deny --version 2>/dev/null)" in
    "cargo-deny $CARGO_DENY_VERSION") return ;;
    esac
    say "building cargo-deny $CARGO_DENY_VERSION (a few minutes, once)"
    cargo install --locked --debug --force --version "$CARGO_DENY_VERSION" cargo-deny >&2
}

# Only the programs: the service that Debian would start takes ports and processor time of its own,
# and a machine that has been told what to do with services keeps its own policy.
install_without_services() {
    local policy=/usr/sbin/policy-rc.d
    if [ -e "$policy" ]; then
        install_packages "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
    as_root chmod +x "$policy"
    install_packages "$@"
}

need_etcd() {
    has etcd && has etcdctl && return
    install_without_services etcd-server etcd-client
}

# Images are imported from a real registry. Without it those tests say that they are skipped.
need_registry() {
    has docker-registry && return
    if [ "$(id -u)" = 0 ] && has apt-get; then
        install_without_services docker-registry
    else
        say "missing: docker-registry; tests of registries will be skipped"
    fi
}

# Archives of history are read by DuckDB in a test. Without it that test says that it is skipped.
need_duckdb() {
    local place="${XDG_CACHE_HOME:-$HOME/.cache}/cellwright/duckdb"
    "$place/bin/python" -c 'import duckdb' 2>/dev/null && return
    say "fetching DuckDB $DUCKDB_VERSION"
    rm -rf "$place"
    python3 -m venv "$place" && "$place/bin/pip" install --quiet "duckdb==$DUCKDB_VERSION" >&2 ||
        say "DuckDB cannot be fetched; the test of archives will be skipped, or fail in CI"
}

# The archive is tested against a server that speaks S3. Without it that test says that it is skipped.
need_moto() {
    local place="${XDG_CACHE_HOME:-$HOME/.cache}/cellwright/moto"
    "$place/bin/python" -c 'import moto.server, boto3' 2>/dev/null && return
    say "fetching moto $MOTO_VERSION"
    rm -rf "$place"
    python3 -m venv "$place" && "$place/bin/pip" install --quiet "moto[server]==$MOTO_VERSION" >&2 ||
        say "moto cannot be fetched; the test of S3 will be skipped, or fail in CI"
}

what="${1:-test}"
case "$what" in
build | test | verify | bench) ;;
*) fail "unknown set '$what'; allowed: build, test, verify, bench" ;;
esac

need_cargo
need_linker
if [ "$what" = bench ]; then
    need_etcd
elif [ "$what" != build ]; then
    need_component rustfmt fmt
    need_component clippy clippy
fi
if [ "$what" = build ] || [ "$what" = test ]; then
    need_container_runtime
fi
if [ "$what" = test ]; then
    need_network_tools
    need_busybox
    need_guest
    need_registry
    need_browser
    need_duckdb
    need_moto
fi
if [ "$what" = verify ]; then
    need_cargo_deny
fi
