#!/usr/bin/env bash
# Tells which processes a run of the tests has left on this machine, ends them, and fails where there were any.
#
#   CELL_TEST_RUN=NAME cargo test --workspace; scripts/leftovers.sh [--machine] NAME
#
# Whatever a run starts inherits its name, so nobody else's cell is touched. With --machine, root is also told
# of mounts and hosts of tests that are over, and they are cleared. Those bear no name: they may be of any run,
# and fail none.
set -euo pipefail

usage() {
    echo "leftovers: '$*'; allowed: [--machine] NAME, the value of CELL_TEST_RUN" >&2
    exit 2
}

# What this script starts is not to bear the name that it looks for.
[ -z "${CELL_TEST_RUN:-}" ] || exec env --unset=CELL_TEST_RUN "$0" "$@"

given="$*"
machine=no
if [ "${1:-}" = --machine ]; then
    machine=yes
    shift
fi
[ "$#" = 1 ] || usage "$given"
case "$1" in '' | -*) usage "$given" ;; esac
run="$1"
# Tenths of a second for what is just about to end.
PATIENCE=50
# Looks at the processes of the run until all of them stand still.
STOP_PASSES=100
# How often all of them are stopped and killed.
ROUNDS=3
# That of tests/src/hosts.rs. Only root has hosts, and every run is to find the same file.
HOSTS_LOCK=/run/cellwright-hosts.lock
found=0

say() {
    echo "left behind: $*"
    found=1
}

# Sets state, parent and birth (in ticks after boot) of a process, unless it is gone. Its name, in parentheses,
# may hold anything, so fields are counted from its end.
ask() {
    local told fields
    { told="$(<"/proc/$1/stat")"; } 2>/dev/null || return 1
    read -r -a fields <<<"${told##*) }"
    [ "${#fields[@]}" -ge 20 ] || return 1
    state="${fields[0]}" parent="${fields[1]}" birth="${fields[19]}"
}

# Who called this script may bear the name, and is not left.
callers() {
    local pid="$$"
    while [ "$pid" -gt 1 ] && ask "$pid"; do
        echo "$pid"
        pid="$parent"
    done
}

# Numbers of the processes that bear the run's name.
bearers() {
    # Somebody else's cannot be read, and whoever ends meanwhile is gone.
    { grep -lzxF "CELL_TEST_RUN=$run" /proc/[0-9]*/environ 2>/dev/null || true; } | cut -d/ -f3 |
        { grep -vxF "$callers" || true; }
}

# A process and all below it, each with its birth and state: tasks bear no name, for they get no environment
# but their own.
with_all_below() {
    local child
    ask "$1" || return 0
    [ "$state" = Z ] || echo "$1 $birth $state"
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do with_all_below "$child"; done
}

everybody() {
    local pid
    for pid in $(bearers); do with_all_below "$pid"; done | sort -u -k1,1n
}

signal() {
    local pid="$2" born="$3"
    # The number may be another's by now, and whoever is gone needs no signal.
    if ask "$pid" && [ "$birth" = "$born" ]; then kill "-$1" "$pid" 2>/dev/null || true; fi
}

# Sets `all` to everybody, once they stand still and nobody new turns up. What is killed while it starts
# something leaves that to another parent, and nobody could tell whose it was.
stop_all() {
    local before="" pid born
    for _ in $(seq "$STOP_PASSES"); do
        all="$(everybody)"
        [ -n "$all" ] || return 0
        if [ "$all" = "$before" ] && ! grep -qv ' [Tt]$' <<<"$all"; then return; fi
        before="$all"
        while read -r pid born _; do signal STOP "$pid" "$born"; done <<<"$all"
    done
}

nobody_within_patience() {
    local before=somebody
    for _ in $(seq "$PATIENCE"); do
        # Not seen once is not gone: a look may miss one that ends and the other that it starts meanwhile.
        if [ -z "$(bearers)" ]; then
            [ "$before" = somebody ] || return 0
            before=nobody
        else
            before=somebody
        fi
        sleep 0.1
    done
    return 1
}

end_processes() {
    local pid born words
    for _ in $(seq "$ROUNDS"); do
        if nobody_within_patience; then return; fi
        stop_all
        [ -n "$all" ] || continue
        while read -r pid born _; do
            # Whoever has just ended is not left.
            words="$({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null)" || continue
            say "process $pid: $words"
        done <<<"$all"
        while read -r pid born _; do signal KILL "$pid" "$born"; done <<<"$all"
    done
    if ! nobody_within_patience; then say "processes that do not end: $(bearers | tr '\n' ' ')"; fi
}

# Folders of tests have the number of their test's process in their names.
remove_mounts() {
    local at
    while read -r _ _ _ _ at _; do
        if [[ $at =~ ^"$temporary"/(cell-test|cellwright-tests)-([0-9]+)- ]] &&
            [ ! -d "/proc/${BASH_REMATCH[2]}" ]; then
            echo "left behind by some run: mount $at"
            umount --lazy "$at" || true
        fi
    done < <(tac /proc/self/mountinfo)
}

# Hosts are there while their test holds the lock, which is held here while they are looked for.
remove_hosts() {
    local host
    compgen -G '/run/netns/cellwright-[0-9]*' >/dev/null || return 0
    exec 9>"$HOSTS_LOCK" || return 0
    flock --nonblock 9 || return 0
    for host in /run/netns/cellwright-[0-9]*; do
        [ -e "$host" ] || continue
        echo "left behind by some run: network namespace ${host##*/}"
        ip netns delete "${host##*/}" || true
    done
}

callers="$(callers)"
end_processes
if [ "$machine" = yes ] && [ "$EUID" = 0 ]; then
    temporary="$(realpath "${TMPDIR:-/tmp}")"
    remove_mounts
    remove_hosts
fi
exit "$found"
