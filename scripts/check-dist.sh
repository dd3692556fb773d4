#!/usr/bin/env bash
# Unpacks a release tarball and checks that what it promises is in it and works.
#
#   scripts/check-dist.sh dist/cellwright-VERSION-linux-ARCH.tar.gz
set -euo pipefail

tarball=$(realpath "$1")
debug=${tarball%.tar.gz}.debug
most=60000000 # bytes of the binary
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
fail() {
    echo "check-dist: $1" >&2
    exit 1
}

tar -xzf "$tarball" -C "$room"
top=("$room"/*)
[ ${#top[@]} -eq 1 ] || fail "one folder at the top, found ${#top[@]}"
cd "${top[0]}"
for file in bin/cell bin/cell-shim LICENSE README.md CHANGELOG.md master.toml.sample examples/hello.json \
    docs/guide/master.md docs/guide/first-cell.md examples/greeter/serve man/man1/cell.1 man/man1/cell-status.1 \
    completion/cell.bash completion/cell.zsh completion/cell.fish \
    systemd/cell-master.service systemd/cell-scheduler.service systemd/cell-agent.service; do
    [ -f "$file" ] || fail "$file is missing"
done
# What the guide links to is there.
for page in docs/guide/*.md; do
    while read -r link; do
        [ -e "docs/guide/$link" ] || fail "$page links to $link"
    done < <(grep -oE '\]\([^)# ]+' "$page" | cut -c 3- | grep -v ://)
done
[ -x bin/cell ] || fail "bin/cell cannot be run"
[ -x bin/cell-shim ] || fail "bin/cell-shim cannot be run"
# An agent takes no shim but of its own build; another would lie there for nothing.
build=$(bin/cell shim --build)
[ "$(bin/cell-shim shim --build)" = "$build" ] || fail "bin/cell-shim is not of the build $build"
size=$(stat -c %s bin/cell)
[ "$size" -le "$most" ] || fail "bin/cell has $size bytes; allowed: $most"
# A trace from this binary can be read: the file beside the tarball is of the same build and has lines.
build_id() { readelf -n "$1" 2>/dev/null | sed -n 's/.*Build ID: //p'; }
[ -f "$debug" ] || fail "$debug is missing"
[ -n "$(build_id bin/cell)" ] || fail "bin/cell has no build ID"
[ "$(build_id bin/cell)" = "$(build_id "$debug")" ] || fail "$debug is of another build"
main=$(nm bin/cell | sed -n 's/^\([0-9a-f]*\) t _ZN4cell4main.*/\1/p')
[ -n "$main" ] || fail "bin/cell does not name its functions"
addr2line -e "$debug" "$main" | grep -q 'cli/src/main\.rs:[0-9]' || fail "$debug has no lines"
version=$(bin/cell --version | cut -d' ' -f2)
case "$tarball" in
*"cellwright-$version-"*) ;;
*) fail "the binary says version $version, the tarball another" ;;
esac
grep -q '^KillMode=process$' systemd/cell-agent.service || fail "the agent's unit kills its tasks"
grep -q '^Delegate=yes$' systemd/cell-agent.service || fail "the agent's unit delegates nothing"
# Every command of a unit that can be enabled exists, and systemd, where it is, knows every key.
mkdir "$room/units"
for unit in systemd/*.service; do
    name=$(basename "$unit")
    verb=$(sed -n 's|^ExecStart=/usr/local/bin/cell \(.*\) --config .*|\1|p' "$unit")
    [ -n "$verb" ] || fail "$name starts something else than cell with a configuration"
    if ! grep -q 'not to be enabled' "$unit"; then
        # shellcheck disable=SC2086
        bin/cell $verb --help >/dev/null || fail "$name: cell $verb is no command"
    fi
    sed "s|/usr/local/bin/cell|$PWD/bin/cell|" "$unit" >"$room/units/$name"
    if command -v systemd-analyze >/dev/null; then
        # Other units of this machine may be at fault too; only ours are of interest.
        said=$(systemd-analyze verify --man=no "$room/units/$name" 2>&1 | grep -F "$name" || true)
        [ -z "$said" ] || fail "$name: $said"
    fi
done
# The binary reads its own sample: it gets as far as the keys, which are not there.
sed "s|^data_dir = .*|data_dir = \"$room/data\"|" master.toml.sample >"$room/master.toml"
said=$(bin/cell master start --config "$room/master.toml" 2>&1) && fail "started without keys"
case "$said" in
*"authority.pem"*) ;;
*) fail "the sample configuration is not read: $said" ;;
esac
echo "check-dist: $(basename "$tarball") is whole"
