#!/usr/bin/env bash
# The long run before a release: simulated cells by the thousand, power cuts, faults on real
# processes, fuzzing. What was run and what came of it is recorded in bench/reports/campaign.md.
#
#   scripts/campaign.sh [PART...]      seeds powercuts faults fuzz; all of them by default
#
# How much: CELL_CAMPAIGN_SEEDS (10000), CELL_CAMPAIGN_CUTS (1000), CELL_CAMPAIGN_FAULT_SECONDS (1800),
# CELL_CAMPAIGN_FUZZ_SECONDS (60, for each target). A part that fails does not stop the others; the
# campaign fails at the end. A part that could not be run, or whose log does not show that all of it was,
# has failed too. Each part replaces its own rows of the report and leaves those of the others.
set -uo pipefail
cd "$(dirname "$0")/.."

seeds="${CELL_CAMPAIGN_SEEDS:-10000}"
cuts="${CELL_CAMPAIGN_CUTS:-1000}"
fault_seconds="${CELL_CAMPAIGN_FAULT_SECONDS:-1800}"
fuzz_seconds="${CELL_CAMPAIGN_FUZZ_SECONDS:-60}"
report=bench/reports/campaign.md
mkdir -p "${CARGO_TARGET_DIR:-target}"
target="$(realpath "${CARGO_TARGET_DIR:-target}")"
logs="$target/campaign"
mkdir -p "$logs"

# Simulated cells at a time: what was seen before an interruption is in the log.
SEEDS_AT_ONCE=1000
# Bytes of inputs that are kept for a target, in everybody's copy of the sources.
MOST_CORPUS=200000
# Bytes of one input: a few entries of an archive.
MOST_INPUT=16384

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
for number in "$seeds" "$cuts" "$fault_seconds" "$fuzz_seconds"; do
    case "$number" in
    '' | *[!0-9]* | 0)
        echo "campaign: '$number'; allowed: a number from 1 up" >&2
        exit 2
        ;;
    esac
done

rows=()
failed=0
commit="$(git rev-parse --short HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ' and changes')"
record() { # part, what was run, result, seconds
    rows+=("| $1 | $2 | $3 | $4 s | $commit | $(date -u +%Y-%m-%d) |")
    printf 'campaign: %s: %s: %s (%s s)\n' "$1" "$2" "$3" "$4" >&2
}

# Runs a command with its output in a file; the end of that is printed when it fails.
logged() {
    local log="$logs/$1.log"
    shift
    "$@" >"$log" 2>&1 && return
    echo "campaign: failed; the last lines of $log:" >&2
    tail -20 "$log" >&2
    failed=1
    return 1
}

# What a log has to show, lest a run that tried nothing counts as one that found nothing.
shows() { # log, pattern
    grep -qE "$2" "$logs/$1.log" && return
    echo "campaign: $logs/$1.log does not show: $2" >&2
    failed=1
    return 1
}

# The sum of the numbers before a word in a log.
sum_of() { # log, word
    grep -oE "[0-9]+ $2" "$logs/$1.log" | awk '{ sum += $1 } END { print sum + 0 }'
}

seeds() {
    local began=$SECONDS result="all kept every promise and healed" bad=0 lost=0
    # The build of the tests: what is simulated is optimised in it too, and it checks its assertions
    # and that no sum overflows. With the workspace's features nothing is built twice.
    # Seeds of every test begin at 0; these begin behind them, so that more is seen.
    local first=1000000 from to
    local last=$((first + seeds))
    for ((from = first; from < last; from = to)); do
        to=$((from + SEEDS_AT_ONCE < last ? from + SEEDS_AT_ONCE : last))
        logged "seeds-$from" env CELL_SEEDS="$from..$to" cargo test --locked --workspace --test cluster \
            -- --exact promises_hold_under_faults_and_every_cell_heals --nocapture &&
            shows "seeds-$from" "seeds $from\.\.$to: $((to - from)) ran, 0 failed$" ||
            lost=$((lost + 1)) bad=$((bad + $(sum_of "seeds-$from" "runs failed")))
        [ "$lost" = 0 ] || result="**failed**: $bad runs, in $lost lots of $SEEDS_AT_ONCE"
    done
    record seeds "$seeds simulated cells, seeds $first to $((last - 1))" "$result" $((SECONDS - began))
}

powercuts() {
    local began=$SECONDS result="nothing acknowledged was lost"
    logged powercuts scripts/powercut.sh "$cuts" && shows powercuts "^cuts=$cuts bad=0$" || result="**failed**"
    grep -q "skipped:" "$logs/powercuts.log" && result="**not run**: $(grep -o 'skipped:.*' "$logs/powercuts.log")"
    record powercuts "$cuts power cuts under a master at work" "$result" $((SECONDS - began))
}

# One at a time, for each fills the machine. With CI set, what a test lacks is a failure and no reason to leave
# it out.
fault_tests() {
    export CI=true CELL_BINARY="$target/debug/cell"
    cargo test --locked --workspace --test faults -- --test-threads=1 &&
        cargo test --locked --workspace --test machines -- --test-threads=1 clocks:: masters::
}

# The tests of faults on real processes, over and over until the time is up: each lays a cell of its own,
# strikes it with clients at work, and checks every acknowledged write and linearizable read.
faults() {
    local began=$SECONDS rounds=0 bad=0 passed=0 log
    # As all tests are built, lest each builds it for itself.
    if ! logged faults-build cargo build --locked --workspace --bin cell --test cell --test faults --test machines; then
        record faults "the tests of faults on real processes" "**they do not build**" $((SECONDS - began))
        return
    fi
    began=$SECONDS
    while [ $((SECONDS - began)) -lt "$fault_seconds" ]; do
        rounds=$((rounds + 1))
        log="faults-$rounds"
        (
            export CELL_TEST_RUN="campaign-$$-$rounds"
            fault_tests && ended=0 || ended=1
            scripts/leftovers.sh "$CELL_TEST_RUN" || ended=1
            # Of both: a filter that fits no test is no failure to cargo.
            [ "$(grep -cE '^test result: ok\. [1-9]' "$logs/$log.log")" = 2 ] || ended=1
            exit "$ended"
        ) >"$logs/$log.log" 2>&1 || {
            echo "campaign: round $rounds failed; the last lines of $logs/$log.log:" >&2
            tail -20 "$logs/$log.log" >&2
            failed=1 bad=$((bad + 1))
        }
        passed=$((passed + $(sum_of "$log" passed)))
    done
    local result="$passed tests passed"
    [ "$bad" = 0 ] || result="**$bad of $rounds rounds failed**, $result"
    record faults "$rounds rounds of the fault tests on real processes" "$result" $((SECONDS - began))
}

# Without sanitizers a stable compiler has all that is needed, behind RUSTC_BOOTSTRAP. What cargo-fuzz adds
# to the flags replaces those of .cargo/config.toml.
cargo_fuzz() {
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="--cfg tokio_unstable" cargo fuzz "$1" --fuzz-dir fuzz --sanitizer none "${@:2}"
}

# The smallest inputs that reach everything that was reached, as far as there is room for them.
keep() { # target, its inputs
    local file bytes=0 size
    rm -rf "fuzz/corpus/$1"
    mkdir -p "fuzz/corpus/$1"
    while read -r size file; do
        bytes=$((bytes + size))
        [ "$bytes" -le "$MOST_CORPUS" ] || break
        cp "$file" "fuzz/corpus/$1/"
    done < <(find "$2" -type f -printf '%s %p\n' | sort -n)
}

fuzz() {
    if ! cargo fuzz --version >/dev/null 2>&1 && ! logged fuzz-install cargo install --locked cargo-fuzz; then
        record fuzz "every target" "**cargo-fuzz could not be installed**" 0
        return
    fi
    # The very versions that the product is made of.
    cp Cargo.lock fuzz/Cargo.lock
    local began=$SECONDS one inputs runs result
    if ! logged fuzz-build cargo_fuzz build; then
        record fuzz "every target" "**they do not build**" $((SECONDS - began))
        return
    fi
    for one in $(sed -n 's/^name = "\([a-z]*\)"$/\1/p' fuzz/Cargo.toml | sort -u); do
        began=$SECONDS
        inputs="$logs/corpus/$one"
        mkdir -p "$inputs" "fuzz/corpus/$one"
        find "fuzz/corpus/$one" -type f -exec cp {} "$inputs/" \;
        if ! logged "fuzz-$one" cargo_fuzz run "$one" "$inputs" -- -max_total_time="$fuzz_seconds" \
            -max_len="$MOST_INPUT" -rss_limit_mb=2048 -timeout=10; then
            record "fuzz $one" "$fuzz_seconds s" "**finding**, see fuzz/artifacts/$one" $((SECONDS - began))
            continue
        fi
        result="**nothing was tried**"
        if shows "fuzz-$one" 'Done [1-9][0-9]* runs'; then
            runs="$(grep -oE 'Done [0-9]+ runs' "$logs/fuzz-$one.log" | tail -1 | tr -dc 0-9)"
            result="no finding in $runs runs"
            if logged "fuzz-$one-min" cargo_fuzz cmin "$one" "$inputs" -- -max_len="$MOST_INPUT"; then
                keep "$one" "$inputs"
            else
                result="$result; **its inputs could not be minimised**"
            fi
        fi
        record "fuzz $one" "$fuzz_seconds s" "$result" $((SECONDS - began))
    done
}

# Of the lines on standard input, the rows of a part: its name, or that and a word.
rows_of() { grep -E "^\| $1( [a-z]+)? \|"; }

write_report() {
    local part kept=""
    # In the order of the parts, whatever the order they were asked for in.
    for part in $known; do
        case " $parts " in
        *" $part "*) kept+="$(printf '%s\n' "${rows[@]}" | rows_of "$part")"$'\n' ;;
        *) [ ! -f "$report" ] || kept+="$(rows_of "$part" <"$report")"$'\n' ;;
        esac
    done
    mkdir -p "$(dirname "$report")"
    {
        echo "# Campaign"
        echo
        echo "The long run before a release, by \`make campaign\`. Each part that is run replaces its own rows; the"
        echo "others are of the commit and the day that they name."
        echo
        echo "- machine of the last run: $(nproc) cores, $(awk '/MemTotal/ { printf "%d GiB", $2 / 1048576 }' /proc/meminfo), $(uname -sr)"
        echo "- $(rustc --version)"
        echo
        echo "| part | what | result | took | commit | date |"
        echo "|---|---|---|---|---|---|"
        grep . <<<"$kept"
    } >"$report.new" && mv "$report.new" "$report"
}

for part in $parts; do "$part"; done
write_report
echo "campaign: recorded in $report" >&2
exit "$failed"
