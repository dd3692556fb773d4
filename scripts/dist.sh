#!/usr/bin/env bash
# Makes dist/cellwright-VERSION-linux-ARCH.tar.gz from a release binary that is built already.
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

mkdir -p "$stage/$name/bin" "$stage/$name/systemd" "$stage/$name/examples" dist
install -m 755 "$binary" "$stage/$name/bin/cell"
install -m 644 packaging/*.service "$stage/$name/systemd/"
install -m 644 examples/hello.json "$stage/$name/examples/"
install -m 644 README.md LICENSE CHANGELOG.md "$stage/$name/"
mkdir -p "$stage/$name/guide"
install -m 644 docs/guide/*.md "$stage/$name/guide/"

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
echo "dist/$name.tar.gz"
