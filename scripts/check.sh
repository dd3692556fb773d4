#!/usr/bin/env bash
# Runs the named stages one after another and prints how long each took. Stops at the first failure.
#
#   scripts/check.sh tidy fmt clippy docs doctests tests api powercut advisories
#
# No stage writes into the sources; --locked makes a forgotten Cargo.lock an error.
set -euo pipefail
cd "$(dirname "$0")/.."

tidy() { cargo run --quiet --locked --package xtask -- tidy; }
fmt() { cargo fmt --all -- --check; }
clippy() { cargo clippy --workspace --all-targets --locked -- -D warnings; }

# Runs what starts cells, and fails as well where any of it is left on the machine afterwards. It is the
# last of its stage: the look comes when the stage's shell ends, so that an interrupted one is cleared too.
leaves_nothing() {
    run="$BASHPID-$EPOCHSECONDS"
    # That of an interrupted stage, until another is known.
    ended=130
    trap look EXIT
    CELL_TEST_RUN="$run" "$@" && ended=0 || ended=$?
}

look() {
    # The second ctrl-c of whoever is impatient would leave what the first was to end.
    trap '' INT
    scripts/leftovers.sh --machine "$run" || [ "$ended" != 0 ] || ended=1
    exit "$ended"
}

# The whole workspace is built first, and every test uses the `cell` of that build. A test that had to
# ask cargo for it would name fewer targets, which can mean other features and so another build.
tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --locked --no-run
        CELL_BINARY="$built" leaves_nothing cargo nextest run --workspace --locked
    else
        cargo test --workspace --all-targets --locked --no-run
        CELL_BINARY="$built" leaves_nothing cargo test --workspace --all-targets --locked
    fi
}

doctests() { cargo test --workspace --doc --locked; }

# Private items are documented too, so a link to one is no dead link.
docs() {
    RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --workspace --no-deps --document-private-items --locked
}

# The API's own description against a running master.
api() { leaves_nothing scripts/api-contract.sh; }

# Power cuts under a master at work; skipped where the tool for it is not.
powercut() { leaves_nothing scripts/powercut.sh; }

# Containers under control groups of version 2 alone, in a guest that `CELL_GUEST` starts.
cgroup2() { scripts/cgroup2.sh; }

deny() { cargo deny --locked check licenses bans sources; }

# Everything that cargo-deny checks. Advisories live in a repository of their own, and building the tool takes a
# network too; a machine without one still verifies the rest.
advisories() {
    if ! timeout 20 git ls-remote --quiet https://github.com/rustsec/advisory-db HEAD >/dev/null 2>&1
    then
        echo "skipped: the advisory database cannot be reached from here"
        return
    fi
    scripts/install-tools.sh verify
    cargo deny --locked check
}

known="tidy fmt clippy docs doctests tests api powercut cgroup2 deny advisories"
for stage in "$@"; do
    case " $known " in
    *" $stage "*) ;;
    *)
        echo "check: unknown stage '$stage'; allowed: $known" >&2
        exit 2
        ;;
    esac
done

mkdir -p "${CARGO_TARGET_DIR:-target}"
built="$(realpath "${CARGO_TARGET_DIR:-target}")/debug/cell"

summary=""
began=$SECONDS
for stage in "$@"; do
    printf '\n== %s\n' "$stage"
    start=$SECONDS
    # A subshell as an `if` condition would switch `set -e` off inside the stage.
    set +e
    (
        set -e
        "$stage"
    )
    status=$?
    set -e
    took=$((SECONDS - start))
    if [ "$status" != 0 ]; then
        printf '== %s FAILED after %s s%s\n' "$stage" "$took" "${summary:+ (passed before:$summary)}"
        exit "$status"
    fi
    printf '== %s passed in %s s\n' "$stage" "$took"
    summary="$summary $stage ${took}s"
    # The stages after the tests use what the tests used.
    if [ "$stage" = tests ]; then export CELL_BINARY="$built"; fi
done
printf '\nall passed in %s s:%s\n' "$((SECONDS - began))" "$summary"
