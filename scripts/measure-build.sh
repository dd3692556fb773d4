#!/usr/bin/env bash
# Measures what building costs, from a clean clone of the commit that is checked out: the release, the
# crates that take longest, the binaries as they are installed, and `make run` until the cell answers.
# Writes bench/reports/build.md and build.json.
#
#   scripts/measure-build.sh                the builds and `make run`; half an hour on two cores
#   scripts/measure-build.sh test           `make test` as well, from nothing; an hour more
#   scripts/measure-build.sh timings FILE   the longest crates of a cargo-timing.html, and nothing else
#
# Wants a machine that does nothing else: it says how loaded that was, and cannot do more about it. Two
# builds need some 6 GB in $TMPDIR. Crates are fetched before the clock starts.
set -euo pipefail
cd "$(dirname "$0")/.."

LONGEST=5 # crates that are named
WAIT=1800 # seconds after which `make run` has failed

# Prints "SECONDS CRATE" for the crates on which cargo spent most, all their units together: library,
# build script and its run, binaries. The page that cargo makes has its data as one JSON array.
longest_crates() {
    python3 - "$1" "$LONGEST" <<'PYTHON'
import collections
import json
import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
found = re.search(r"const UNIT_DATA = (\[.*?\]);\s*$", text, re.DOTALL | re.MULTILINE)
if not found:
    sys.exit(f"{sys.argv[1]}: no UNIT_DATA: cargo writes its timings in another form")
seconds = collections.Counter()
for unit in json.loads(found[1]):
    seconds[unit["name"]] += unit["duration"]
for name, spent in sorted(seconds.items(), key=lambda item: (-item[1], item[0]))[: int(sys.argv[2])]:
    print(f"{spent:.1f} {name}")
PYTHON
}

# Makes both reports of a file of rows, "MEASURED<tab>UNIT<tab>TARGET<tab>WORK" each, with what
# the reports of benchmarks say of the machine.
write_report() {
    python3 - "$@" <<'PYTHON'
import json
import os
import re
import subprocess
import sys

rows_file, folder, commit, date, load_before, load_after = sys.argv[1:]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def field(file, key):
    found = re.search(rf"^{key}\s*:\s*(.*)$", open(file, encoding="utf-8").read(), re.MULTILINE)
    return found[1].strip() if found else "unknown"


def formatted(value):
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


about = (
    "What building costs, from a clean clone and an empty target folder, with all crates fetched "
    "before. `scripts/measure-build.sh` measures it again."
)
limits = (
    "Seconds of a crate are those of all its units together, which overlap with those of other "
    "crates. A binary is measured as it is installed, its line tables split off."
)
kib = int(field("/proc/meminfo", "MemTotal").split()[0])
origin = {
    "cpu": field("/proc/cpuinfo", "model name"),
    "cores": os.cpu_count(),
    "memory_gib": -(-kib // (1 << 20)),
    "kernel": output("uname", "-r"),
    "rustc": output("rustc", "--version"),
    "commit": commit,
}
rows = []
for line in open(rows_file, encoding="utf-8"):
    measured, unit, target, work = line.rstrip("\n").split("\t")
    rows.append(
        {"work": work, "measured": float(measured), "unit": unit, "target": target, "commit": commit}
    )
report = {
    "name": "build", "about": about, "limits": limits, "date": date,
    "load": [load_before, load_after], "origin": origin, "rows": rows,
}
with open(os.path.join(folder, "build.json"), "w", encoding="utf-8") as file:
    file.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
with open(os.path.join(folder, "build.md"), "w", encoding="utf-8") as file:
    file.write(f"# build\n\n{about}\n\n| work | measured | target |\n|---|---|---|\n")
    for row in rows:
        shown = f"{formatted(row['measured'])} {row['unit']}"
        file.write(f"| {row['work']} | {shown} | {row['target']} |\n")
    file.write(
        f"\n{limits}\n\n{date}: {origin['cpu']} ({origin['cores']} cores, {origin['memory_gib']} GiB), "
        f"Linux {origin['kernel']}, {origin['rustc']}, commit {commit}; load average of the whole "
        f"machine {load_before} before and {load_after} after.\n"
    )
PYTHON
}

# MEASURED UNIT TARGET WORK
row() {
    printf '%s\t%s\t%s\t%s\n' "$@" >>"$room/rows"
    printf '%-58s %s %s\n' "$4" "$1" "$2"
}

seconds_since() { awk -v from="$1" -v now="$(date +%s.%N)" 'BEGIN { printf "%.1f", now - from }'; }

megabytes() { awk -v bytes="$(stat -c %s "$1")" 'BEGIN { printf "%.1f", bytes / 1e6 }'; }

load() { cut -d' ' -f1 /proc/loadavg; }

fail() {
    echo "measure-build: $*" >&2
    exit 1
}

measure_release() {
    local from
    export CARGO_TARGET_DIR=$room/release
    from=$(date +%s.%N)
    (cd "$room/clone" && cargo build --release --locked --timings -p cellwright-cli -p cellwright-shim)
    row "$(seconds_since "$from")" s "≤ 480" "release build of cell and cell-shim, all crates"
    longest_crates "$CARGO_TARGET_DIR/cargo-timings/cargo-timing.html" >"$room/longest"
    while read -r spent crate; do
        row "$spent" s "" "... of that \`$crate\`"
    done <"$room/longest"
}

# What a release tarball has, which scripts/dist.sh makes of the build.
measure_installed() {
    local built=$room/release/release most tarball
    most=$(sed -n 's/^most=\([0-9]*\).*/\1/p' scripts/check-dist.sh)
    tarball=$(cd "$room/clone" && scripts/dist.sh "$built/cell" | tail -n 1)
    mkdir "$room/installed"
    tar -xzf "$room/clone/$tarball" -C "$room/installed" --strip-components=1
    row "$(megabytes "$room/installed/bin/cell")" MB "≤ $((most / 1000000))" "\`cell\` as it is installed"
    row "$(megabytes "$built/cell")" MB "" "... as it is built, with its line tables"
    row "$(megabytes "$room/clone/${tarball%.tar.gz}.debug")" MB "" "... its line tables, split off and compressed"
    row "$(megabytes "$room/installed/bin/cell-shim")" MB "" "\`cell-shim\` as it is installed"
    row "$(megabytes "$room/clone/$tarball")" MB "" "the tarball of the release"
}

# From the first command of a reader to the first answer of the cell.
measure_run() {
    local from port=${MEASURE_PORT:-17070}
    export CARGO_TARGET_DIR=$room/run
    from=$(date +%s.%N)
    setsid make -C "$room/clone" run LISTEN="127.0.0.1:$port" >"$room/run.log" 2>&1 &
    runner=$!
    until CELL_ADDR=127.0.0.1:$port "$room/run/quick/cell" status >/dev/null 2>&1; do
        kill -0 "$runner" 2>/dev/null || fail "make run ended: $(tail -n 5 "$room/run.log")"
        [ "$(seconds_since "$from" | cut -d. -f1)" -lt "$WAIT" ] || fail "no answer in $WAIT s"
        sleep 0.2
    done
    row "$(seconds_since "$from")" s "≤ 240" "\`make run\` from a clean clone until \`cell status\` answers"
    kill -TERM -- "-$runner"
    wait "$runner" || true
    runner=
}

# Everything that CI runs, its build included. It needs the tools of tests, and root.
measure_test() {
    local from
    export CARGO_TARGET_DIR=$room/test
    (cd "$room/clone" && scripts/install-tools.sh test)
    from=$(date +%s.%N)
    make -C "$room/clone" test >"$room/test.log" 2>&1 || fail "make test: $(tail -n 5 "$room/test.log")"
    row "$(seconds_since "$from")" s "≤ 2700" "\`make test\` from a clean clone, its build included"
}

cleanup() {
    [ -z "$runner" ] || kill -KILL -- "-$runner" 2>/dev/null || true
    rm -rf "$room"
}

if [ "${1:-}" = timings ]; then
    longest_crates "${2:?the cargo-timing.html to read}"
    exit
fi
case "$#:${1:-}" in
0: | 1:test) ;;
*) fail "unknown arguments: $*; allowed: none, test, or timings FILE" ;;
esac

room=$(mktemp -d)
runner=
trap cleanup EXIT
date=$(date -u '+%Y-%m-%d %H:%M UTC')
before=$(load)
commit=$(git rev-parse --short=12 HEAD)
git clone --quiet --no-hardlinks . "$room/clone"
(cd "$room/clone" && scripts/install-tools.sh build && cargo fetch --locked --quiet)
measure_release
measure_installed
measure_run
[ "${1:-}" != test ] || measure_test
write_report "$room/rows" bench/reports "$commit" "$date" "$before" "$(load)"
echo "recorded in bench/reports/build.md"
