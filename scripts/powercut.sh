#!/usr/bin/env bash
# Cuts the power under a master at work, again and again, and looks whether everything it had
# acknowledged is on the disk. Killing a process cannot show a missing flush; this can.
#
#   scripts/powercut.sh [CUTS]
#
# Needs root and the power-cut tool ($CELL_FAULTLAB/powercut.sh, by default beside the repository);
# says so and does nothing where one is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

cuts="${1:-10}"
tool="${CELL_FAULTLAB:-../shared/faultlab}/powercut.sh"
skip() {
    echo "powercut: skipped: $*"
    exit 0
}
[ -x "$tool" ] || skip "$tool is not there; name its folder in CELL_FAULTLAB"
[ "$(id -u)" = 0 ] || skip "needs root, for mounts"
for program in mkfs.xfs mkfs.ext4 losetup; do
    command -v "$program" >/dev/null || skip "$program is missing"
done

target="${CARGO_TARGET_DIR:-target}"
if [ -z "${CELL_BINARY:-}" ]; then
    # As the tests are built, lest other features mean another build.
    cargo build --locked --workspace --bin cell --bin powercut-load --test cell
    CELL_BINARY="$target/debug/cell"
fi
CELL_BINARY="$(realpath "$CELL_BINARY")"
export CELL_BINARY
load="$(realpath "${CELL_POWERCUT_LOAD:-$target/debug/powercut-load}")"

# The tool may leave before what it killed has let go of the disks: in a mount namespace of its own,
# whatever is still mounted goes with it.
mark="$(mktemp)"
said="$(mktemp)"
trap 'find /tmp -maxdepth 1 -name "pcut.*" -newer "$mark" -exec rm -rf {} +; rm -f "$mark" "$said"' EXIT
# A master refuses writes with less than half a gigabyte free.
SIZE=900M CHECK="$load check" unshare --mount "$tool" "$cuts" -- "$load" write | tee "$said"
# Where nothing was acknowledged, nothing could be lost.
grep -qE "^cut=$cuts acked=[1-9]" "$said" || {
    echo "powercut: nothing was acknowledged before the last cut; the master was not at work" >&2
    exit 1
}
