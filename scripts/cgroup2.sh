#!/usr/bin/env bash
# Runs the tests of groups and containers where control groups are of version 2 and nothing else is:
# in a guest with a kernel of its own. A machine whose groups are of version 1 shows nothing of that.
#
#   CELL_GUEST=TOOL scripts/cgroup2.sh ['TEST FILTER…']…
#
# TEST is live, cell or machines; without one, all that is about containers runs. Says so and does
# nothing where CELL_GUEST is not set. What TOOL must do:
#
#   TOOL 'COMMANDS' FILE…    boots a throw-away Linux with the FILEs in /x, runs COMMANDS there as root
#                            with busybox, and prints GUEST-RC= and their exit code at the end
#   $D                       its folder; the modules of its kernel are in $D/root/lib/modules
#   $T, $MEM                 seconds that the guest may take, and its memory in MiB
#
# CELL_GUEST_DIR is that folder (below the target folder, if not set), CELL_GUEST_SECONDS the time.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'cgroup2: %s\n' "$*"; }
fail() {
    say "$*" >&2
    exit 1
}
if [ -z "${CELL_GUEST:-}" ]; then
    fail "CELL_GUEST names no program that starts a guest; see scripts/cgroup2.sh"
fi
[ -x "$CELL_GUEST" ] || fail "CELL_GUEST: $CELL_GUEST; allowed: a program that starts a guest"
guest="$(realpath "$CELL_GUEST")"

plan=("$@")
if [ "${#plan[@]}" = 0 ]; then
    plan=("live" "cell contain:: devices::" "machines hostile::")
fi

mkdir -p "${CARGO_TARGET_DIR:-target}"
target="$(realpath "${CARGO_TARGET_DIR:-target}")"
D="$(realpath -m "${CELL_GUEST_DIR:-$target/guest}")"
export D
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
root="$work/root"

# The programs that tests and their tasks use, and the libraries of those. Tasks in containers see
# the machine's own programs, so these are what they see.
programs="sh bash busybox runc ip iptables perl mkfs.ext4 grep sed awk find tar [ cat chmod chown
    chroot cp cut date dd df du echo env expr false head hostname id kill ln ls mkdir mkfifo mknod
    mount mv nsenter ps readlink rm rmdir seq setsid sleep sort stat tail tee test timeout touch tr
    true umount uname unshare wc"

copy_libraries_of() {
    # A program without any has none to name, which is no failure.
    for library in $({ ldd "$1" 2>/dev/null || true; } | grep -o '/[^ ]*' || true); do
        [ -e "$root$library" ] && continue
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}

lay_root() {
    mkdir -p "$root"/{usr/{bin,sbin,lib,lib64},etc,proc,sys,dev,run,tmp,disk,root,var/lib,tests}
    for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$root/$folder"; done
    ln -s ../run "$root/var/run"
    for program in $programs; do
        # Not what the shell itself knows by that name.
        at="$(type -P "$program")" || fail "$program is missing; scripts/install-tools.sh test"
        cp -L "$at" "$root/usr/bin/$program"
        copy_libraries_of "$at"
    done
    printf '%s\n' root:x:0:0::/root:/bin/sh daemon:x:1:1::/:/bin/false \
        nobody:x:65534:65534::/:/bin/false >"$root/etc/passwd"
    printf 'root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n' >"$root/etc/group"
    printf 'root:*:::::::\n' >"$root/etc/shadow"
    chmod 600 "$root/etc/shadow"
    printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
    printf 'guest\n' >"$root/etc/hostname"
}

# Tests know their program and the sources by the paths they were built with.
lay_tests() {
    local built test name
    # As the tests are built, lest other features mean another build.
    built="$(cargo test --locked --workspace --no-run --message-format=json \
        --test live --test cell --test machines |
        sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p')"
    for test in $built; do
        name="$(basename "$test")"
        strip -o "$root/tests/${name%-*}" "$test"
        copy_libraries_of "$test"
    done
    mkdir -p "$root$target/debug" "$root$PWD/tests"
    strip -o "$root$target/debug/cell" "$target/debug/cell"
    printf '%s\n' "${plan[@]}" >"$root/tests/plan"
    printf '%s\n' "$target/debug/cell" >"$root/tests/binary"
    cp scripts/cgroup2-guest.sh "$root/tests/run"
}

if [ ! -d "$D/root/lib/modules" ]; then
    say "the guest is fetched"
    "$guest" true >/dev/null
fi
modules=()
for module in brd llc stp bridge overlay; do
    found="$(find "$D/root/lib/modules" -name "$module.ko" | head -n 1)"
    [ -n "$found" ] || fail "the guest's kernel has no module $module"
    modules+=("$found")
done
lay_root
lay_tests
tar --owner=0 --group=0 -C "$root" -cf "$work/root.tar" .

T="${CELL_GUEST_SECONDS:-3600}" MEM=4096 "$guest" 'sh /x/cgroup2-guest.sh' \
    "$work/root.tar" "${modules[@]}" "$PWD/scripts/cgroup2-guest.sh" </dev/null |
    tr -d '\r' | tee "$work/said"
grep -qx 'GUEST-RC=0' "$work/said" || fail "failed in the guest, or the guest did not end in time"
say "passed"
