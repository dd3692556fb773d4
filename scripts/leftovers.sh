#!/usr/bin/env bash
# Tells what a run of the tests has left on this machine, ends it, and fails where there was something.
#
#   CELL_TEST_RUN=NAME cargo test --workspace; scripts/leftovers.sh NAME
#
# Whatever a run starts inherits its name, so nobody else's cell is touched. Mounts and hosts of tests are
# known by theirs, and left by any run that is over: who made them is not there, or does not hold the lock.
set -euo pipefail

run="${1:?usage: scripts/leftovers.sh NAME}"
temporary="${TMPDIR:-/tmp}"
# Tenths of a second for what is just about to end.
PATIENCE=50
found=0

say() {
    echo "left behind: $*"
    found=1
}

# Numbers of the processes that bear the run's name.
bearers() {
    # Somebody else's cannot be read, and whoever ends meanwhile is gone.
    { grep -lzxF "CELL_TEST_RUN=$run" /proc/[0-9]*/environ 2>/dev/null || true; } | cut -d/ -f3
}

# A process and all below it: tasks bear no name, for they get no environment but their own.
with_all_below() {
    local child
    echo "$1"
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do with_all_below "$child"; done
}

end_processes() {
    local left pid all words
    for _ in $(seq "$PATIENCE"); do
        left="$(bearers)"
        [ -n "$left" ] || return 0
        sleep 0.1
    done
    all="$(for pid in $left; do with_all_below "$pid"; done | sort -nu)"
    for pid in $all; do
        # Whoever has just ended is not left.
        words="$({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null)" || continue
        say "process $pid: $words"
    done
    for pid in $all; do kill -KILL "$pid" 2>/dev/null || true; done
}

# Folders of tests have the number of their test's process in their names.
remove_mounts() {
    local at
    while read -r _ _ _ _ at _; do
        if [[ $at =~ ^"$temporary"/(cell-test|cellwright-tests)-([0-9]+)- ]] &&
            [ ! -d "/proc/${BASH_REMATCH[2]}" ]; then
            say "mount $at"
            umount --lazy "$at" || true
        fi
    done < <(tac /proc/self/mountinfo)
}

# Hosts are there while their test holds the lock, which is held here while they are looked for.
remove_hosts() {
    local host
    compgen -G '/run/netns/cellwright-[0-9]*' >/dev/null || return 0
    exec 9>"$temporary/cellwright-hosts.lock"
    flock --nonblock 9 || return 0
    for host in /run/netns/cellwright-[0-9]*; do
        [ -e "$host" ] || continue
        say "network namespace ${host##*/}"
        ip netns delete "${host##*/}" || true
    done
}

end_processes
remove_mounts
remove_hosts
exit "$found"
