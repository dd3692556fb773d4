#!/usr/bin/env bash
# Checks the API's own description (/v1/openapi.json) against a running master: schemathesis makes
# up requests, good and bad, and compares every answer with what the description promises.
#
#   scripts/api-contract.sh
#
# The tool lives in a virtual environment in the user's cache. A machine that can neither find nor
# fetch it says so and goes on; in CI (CI=true) that is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=4.32.5
# The same requests in every run, as far as the time reaches; another number asks for others.
SEED="${CELL_CONTRACT_SEED:-1}"
# Seconds of requests with made-up names, and as many with names that are there. The limit beyond
# only ends a run that hangs.
BUDGET="${CELL_CONTRACT_SECONDS:-60}"
LIMIT=$((BUDGET * 3 + 60))

skip() {
    echo "api-contract: skipped: $*"
    [ "${CI:-}" = true ] && exit 1
    exit 0
}

environment="${XDG_CACHE_HOME:-$HOME/.cache}/cellwright/schemathesis-$VERSION"
tool="$environment/bin/schemathesis"
if [ ! -x "$tool" ]; then
    command -v python3 >/dev/null || skip "python3 is missing"
    python3 -m venv "$environment" || skip "python3 cannot make a virtual environment"
    "$environment/bin/pip" install --quiet "schemathesis==$VERSION" ||
        skip "schemathesis $VERSION cannot be fetched"
fi

if [ -z "${CELL_BINARY:-}" ]; then
    # As the tests are built, lest other features mean another build.
    cargo build --quiet --locked --workspace --bin cell --test cell
    CELL_BINARY="$(realpath "${CARGO_TARGET_DIR:-target}/debug/cell")"
fi

sources="$PWD"
# Whatever is started here is known by the name of the run that this is part of, or by one of its own.
export CELL_TEST_RUN="${CELL_TEST_RUN:-contract-$$-$EPOCHSECONDS}"
folder="$(mktemp -d)"
master=""
url=""
# Seconds for all jobs to be over, and as many for the master to end.
PATIENCE=30

cell() { "$CELL_BINARY" --master "${url#http://}" "$@"; }

# Tasks outlive the master that started them, so they are ended while it is there. Fails if some are not over:
# requests that were made up may have set a long notice, or taken away the machine.
stop_jobs() {
    local job live="" until=$((SECONDS + PATIENCE))
    while [ "$SECONDS" -lt "$until" ]; do
        live="$(cell job status --state live -o name)" || return 1
        [ -n "$live" ] || return 0
        # A refusal says that it is over, or stops already.
        while read -r job; do cell stop "$job" >/dev/null 2>&1 || true; done <<<"$live"
        sleep 0.1
    done
    echo "api-contract: these jobs do not stop: ${live//$'\n'/ }"
    return 1
}

end_master() {
    local until=$((SECONDS + PATIENCE))
    kill "$master" 2>/dev/null || true
    while [ "$SECONDS" -lt "$until" ]; do
        if ! kill -0 "$master" 2>/dev/null; then return; fi
        sleep 0.1
    done
    echo "api-contract: the master does not end"
    return 1
}

# The root of a container that no agent took away.
unmount() {
    local at
    while read -r _ _ _ _ at _; do
        if [[ $at == "$folder"/* ]]; then umount --lazy "$at" || true; fi
    done < <(tac /proc/self/mountinfo)
}

finish() {
    local result=$? all_over=yes
    trap '' INT
    cd "$sources"
    # Ctrl-c has ended it already.
    if [ -n "$url" ] && kill -0 "$master" 2>/dev/null; then stop_jobs || all_over=no; fi
    if [ -n "$master" ]; then end_master || result=1; fi
    if ! scripts/leftovers.sh "$CELL_TEST_RUN"; then
        echo "api-contract: ended what was left"
        unmount
        # Only tasks that were not stopped may be.
        if [ "$all_over" = yes ]; then result=1; fi
    fi
    # Never through a mount, whatever it shows.
    rm -rf --one-file-system "$folder"
    exit "$result"
}
trap finish EXIT

"$CELL_BINARY" dev --data-dir "$folder/data" --listen 127.0.0.1:0 >"$folder/said" 2>"$folder/log" &
master=$!

# Port 0 takes a free one; the master says which.
for _ in $(seq 300); do
    url="$(sed -n 's/.* serves \(http[^ ]*\).*/\1/p' "$folder/said" | head -n 1)"
    [ -n "$url" ] && break
    kill -0 "$master" 2>/dev/null || break
    sleep 0.1
done
if [ -z "$url" ]; then
    echo "api-contract: the master does not start:" >&2
    cat "$folder/said" "$folder/log" >&2
    exit 1
fi

# Names that are there, so that requests also reach what is behind "there is no such job".
cell run examples/hello.json
cell run examples/cron.jsonnet

# It keeps a cache where it stands, which is not to be among the sources, and reads its settings
# there. 414 is no refusal to it unless told, and the server's answer to an address of 64 KiB; 507
# is no failure of the server but the answer of a cell that holds as many of something as it may.
cd "$folder"
# The token comes from a file, as the folder is this account's alone: never by the command line.
cat >made-up.toml <<EOF
headers = { Authorization = "Bearer $(cat data/dev-token)" }
EOF
cat >>made-up.toml <<'EOF'
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 414, 415, 422, 428, 429, "5xx"]
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 507]
EOF
cp made-up.toml known.toml
cat >>known.toml <<'EOF'
[parameters]
"path.user" = "dev"
"path.job" = "hello"
"path.index" = 0
"path.machine" = "local"
"path.cron" = "sweep"
"path.band" = "batch"
EOF

# Routes that answer for ever (watches) are not asked, the seed makes a failure repeatable, and an
# open master needs to be told nothing: made-up credentials would only be refused. A request of the
# right shape may still be refused for what it says (a key used before, a name taken), so that
# check is left out; that a refusal is documented is still checked.
result=0
for names in made-up known; do
    echo "api-contract: $names names, seed $SEED"
    timeout --signal=INT "$LIMIT" "$tool" --config-file "$names.toml" run "$url/v1/openapi.json" \
        --url "$url" --phases examples,coverage,fuzzing --max-time "$BUDGET" --seed "$SEED" \
        --continue-on-failure --generation-with-security-parameters false \
        --exclude-checks ignored_auth,positive_data_acceptance --generation-database none \
        --request-timeout 10 --exclude-path-regex '^/v1/watch/' --no-color >report || result=$?
    # Its warnings are long, and whoever sees only the end of a log is to see what failed.
    sed -n '/= FAILURES =/,/= WARNINGS =/p' report | cut -c 1-300 | head -n 200
    sed -n '/^API Operations:/,$p' report
    [ "$result" = 0 ] || break
done
if [ "$result" != 0 ]; then
    echo "api-contract: the end of the master's log:"
    tail -n 20 log
fi
exit "$result"
