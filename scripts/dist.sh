#!/usr/bin/env bash
# Makes dist/cellwright-VERSION-linux-ARCH.tar.gz from a release binary that is built already, with the
# cell-shim that lies beside it, and the .debug file that turns the addresses of this very binary into
# lines.
#
#   scripts/dist.sh [BINARY]
#
# The same binary and sources give the same bytes: names are sorted, owners and times are fixed.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:-${CARGO_TARGET_DIR:-target}/release/cell}
version=$("$binary" --version | cut -d' ' -f2)
name="cellwright-$version-linux-$(uname -m)"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

mkdir -p "$stage/$name/bin" "$stage/$name/systemd" dist
# Four fifths of the binary say which line an address is; only who reads a trace needs them. The names
# of functions stay, so that a trace says something by itself. Found again by the link and build ID.
objcopy --only-keep-debug --compress-debug-sections=zlib "$binary" "$stage/cell.debug"
# Names of data say nothing in a trace, and are 3 MB.
objcopy --strip-debug --wildcard --strip-symbol='GCC_except_table*' --strip-symbol='.Lanon*' \
    --strip-symbol='anon.*' --strip-symbol='switch.table*' --strip-symbol='*__CALLSITE*' \
    --add-gnu-debuglink="$stage/cell.debug" "$binary" "$stage/$name/bin/cell"
chmod 755 "$stage/$name/bin/cell"
# Small enough to keep its lines, which no start reads.
objcopy --compress-debug-sections=zlib "$(dirname "$binary")/cell-shim" "$stage/$name/bin/cell-shim"
chmod 755 "$stage/$name/bin/cell-shim"
install -m 644 packaging/*.service "$stage/$name/systemd/"
install -m 644 README.md LICENSE CHANGELOG.md "$stage/$name/"
# The guide with all that it shows and asks for, at the places where its links look.
mkdir -p "$stage/$name/docs" "$stage/$name/bench/reports"
cp -r examples "$stage/$name/"
cp -r docs/guide docs/glossary.md docs/coverage.md docs/security.md "$stage/$name/docs/"
install -m 644 bench/reports/*.md "$stage/$name/bench/reports/"
mkdir -p "$stage/$name/clients"
cp -r clients/python "$stage/$name/clients/"
find "$stage/$name/clients" -name __pycache__ -prune -exec rm -r {} +

# Manual pages and completion are made by the binary, so they know every command it knows.
"$binary" man "$stage/$name/man/man1" >/dev/null
mkdir -p "$stage/$name/completion"
for shell in bash zsh fish; do
    "$binary" completion "$shell" >"$stage/$name/completion/cell.$shell"
done

# The sample is what `cell master init` writes, so it cannot say anything the binary does not know.
"$binary" master init --cell example --name m1 --advertise m1.example:7070 \
    --data-dir "$stage/data" --config "$stage/sample.toml" \
    --contexts "$stage/contexts.toml" >/dev/null
sed "s|^data_dir = .*|data_dir = \"/var/lib/cellwright/master\"|" "$stage/sample.toml" \
    >"$stage/$name/master.toml.sample"

date=$(git log -1 --format=%cI 2>/dev/null || echo 1980-01-01T00:00:00Z)
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" -C "$stage" -cf - "$name" |
    gzip -n >"dist/$name.tar.gz"
install -m 644 "$stage/cell.debug" "dist/$name.debug"
echo "dist/$name.tar.gz"
