#!/usr/bin/env bash
# The long run before a release: simulated cells by the thousand, power cuts, faults on real
# processes, fuzzing. What was run and what came of it is recorded in bench/reports/campaign.md.
#
#   scripts/campaign.sh [PART...]      seeds powercuts faults fuzz; all of them by default
#
# How much: CELL_CAMPAIGN_SEEDS (10000), CELL_CAMPAIGN_CUTS (1000), CELL_CAMPAIGN_FAULT_MINUTES (30),
# CELL_CAMPAIGN_FUZZ_SECONDS (60, for each target). A part that fails does not stop the others; the
# campaign fails at the end.
set -uo pipefail
cd "$(dirname "$0")/.."

seeds="${CELL_CAMPAIGN_SEEDS:-10000}"
cuts="${CELL_CAMPAIGN_CUTS:-1000}"
minutes="${CELL_CAMPAIGN_FAULT_MINUTES:-30}"
fuzz_seconds="${CELL_CAMPAIGN_FUZZ_SECONDS:-60}"
report=bench/reports/campaign.md
logs="${CARGO_TARGET_DIR:-target}/campaign"
mkdir -p "$logs"

known="seeds powercuts faults fuzz"
parts="${*:-$known}"
for part in $parts; do
    case " $known " in
    *" $part "*) ;;
    *)
        echo "campaign: unknown part '$part'; allowed: $known" >&2
        exit 2
        ;;
    esac
done

rows=()
failed=0
record() { # part, what was run, result, seconds
    rows+=("| $1 | $2 | $3 | $4 s |")
    printf 'campaign: %s: %s: %s (%s s)\n' "$1" "$2" "$3" "$4" >&2
}

# Runs a command with its output in a file; the file's name is printed when it fails.
logged() {
    local log="$logs/$1.log"
    shift
    "$@" >"$log" 2>&1 && return
    echo "campaign: failed; the last lines of $log:" >&2
    tail -20 "$log" >&2
    failed=1
    return 1
}

seeds() {
    local began=$SECONDS result="all kept every promise and healed"
    # Seeds of every test begin at 0; these begin behind them, so that more is seen.
    local from=1000000
    logged seeds env CELL_SEEDS="$from..$((from + seeds))" \
        cargo nextest run --release --locked -p cellwright-sim --test cluster ||
        result="**failed**: $(grep -o '[0-9]* runs failed' "$logs/seeds.log" | head -1)"
    record seeds "$seeds simulated cells, seeds $from to $((from + seeds - 1))" "$result" $((SECONDS - began))
}

powercuts() {
    local began=$SECONDS result="nothing acknowledged was lost"
    logged powercuts scripts/powercut.sh "$cuts" || result="**failed**"
    grep -q "skipped:" "$logs/powercuts.log" && result="not run: $(grep -o 'skipped:.*' "$logs/powercuts.log")"
    record powercuts "$cuts power cuts under a master at work" "$result" $((SECONDS - began))
}

# The fault tests, over and over until the time is up: each lays a cell of its own, strikes it with
# clients at work, and checks every acknowledged write and linearizable read.
faults() {
    local began=$SECONDS rounds=0 bad=0 passed=0
    cargo nextest run --locked -p cellwright-tests --test faults --no-run >"$logs/faults-build.log" 2>&1
    while [ $((SECONDS - began)) -lt $((minutes * 60)) ]; do
        rounds=$((rounds + 1))
        logged "faults-$rounds" cargo nextest run --locked -p cellwright-tests --test faults || bad=$((bad + 1))
        local ran
        ran=$(grep -oE '[0-9]+ passed' "$logs/faults-$rounds.log" | tail -1 | cut -d' ' -f1)
        passed=$((passed + ${ran:-0}))
    done
    local result="$passed tests passed"
    [ "$bad" = 0 ] || result="**$bad of $rounds rounds failed**, $result"
    record faults "$rounds rounds of the fault tests on real processes" "$result" $((SECONDS - began))
}

fuzz() {
    if ! cargo fuzz --version >/dev/null 2>&1; then
        logged fuzz-install cargo install --locked cargo-fuzz || {
            record fuzz "every target" "**cargo-fuzz could not be installed**" 0
            return
        }
    fi
    local target began result
    for target in $(sed -n 's/^name = "\([a-z]*\)"$/\1/p' fuzz/Cargo.toml | sort -u); do
        began=$SECONDS
        mkdir -p "fuzz/corpus/$target"
        if logged "fuzz-$target" env RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir fuzz --sanitizer none \
            "$target" -- -max_total_time="$fuzz_seconds" -rss_limit_mb=2048 -timeout=10; then
            result="no finding; $(grep -oE 'Done [0-9]+ runs' "$logs/fuzz-$target.log" | tail -1)"
        else
            result="**finding**, see fuzz/artifacts/$target"
        fi
        record "fuzz $target" "$fuzz_seconds s" "$result" $((SECONDS - began))
    done
}

for part in $parts; do "$part"; done

{
    echo "# Campaign"
    echo
    echo "The long run before a release, by \`make campaign\`. Made anew by each run; parts that were not asked"
    echo "for in the last one are not in it."
    echo
    echo "- commit: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)$(git diff --quiet 2>/dev/null || echo ', with changes')"
    echo "- machine: $(nproc) cores, $(awk '/MemTotal/ { printf "%d GiB", $2 / 1048576 }' /proc/meminfo), $(uname -sr)"
    echo "- $(rustc --version)"
    echo
    echo "| part | what | result | took |"
    echo "|---|---|---|---|"
    printf '%s\n' "${rows[@]}"
} >"$report"
echo "campaign: recorded in $report" >&2
exit "$failed"
