#!/bin/sh
# What scripts/cgroup2.sh does inside its guest: first from the file system that the kernel booted
# with, then, as `/tests/run inside`, from a root of its own, for a container cannot be made from the
# former (it cannot be left by pivot_root). Its exit code is the result.
set -eu

# A disk, and not a file system in memory: what a task writes there would be charged to the task,
# and there would be no device whose rate could be limited.
settle() {
    dmesg -n 1
    insmod /x/brd.ko rd_nr=1 rd_size=2097152
    for module in llc stp bridge overlay; do insmod /x/$module.ko; done
    mkdir /new
    mount -t tmpfs -o size=40%,mode=755 root /new
    tar -xf /x/root.tar -C /new
    rm /x/root.tar
    mount -t proc proc /new/proc
    mount -t sysfs sysfs /new/sys
    mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
    mount -t devtmpfs devtmpfs /new/dev
    mkdir -p /new/dev/pts /new/dev/shm /new/dev/mqueue
    # The kernel makes devices, and leaves these links to others.
    ln -s /proc/self/fd /new/dev/fd
    for link in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${link%:*}" "/new/dev/${link#*:}"; done
    mount -t devpts devpts /new/dev/pts
    mount -t tmpfs shm /new/dev/shm
    cd /new
    mount -o move . /
    exec chroot . /bin/sh /tests/run inside
}

# Runs one test program with its filters, one test after another. That it ran none is a failure.
run() {
    echo "== $*"
    program="$1"
    shift
    { "/tests/$program" --test-threads=1 "$@" && touch /tests/well; } 2>&1 | tee /tests/said
    [ -e /tests/well ] && grep -q '^test result: ok\. [1-9]' /tests/said || failed="$failed $program"
    rm -f /tests/well
}

inside() {
    export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/disk CI=1 RUST_BACKTRACE=0
    CELL_BINARY="$(cat /tests/binary)"
    export CELL_BINARY
    mkfs.ext4 -q /dev/ram0
    # Not at /tmp, where the program under test may be.
    mount -t ext4 /dev/ram0 /disk
    chmod 1777 /disk /tmp
    echo "Linux $(uname -r), $(runc --version | head -n 1), $(grep -c ^processor /proc/cpuinfo) CPUs"
    echo "controllers: $(cat /sys/fs/cgroup/cgroup.controllers)"
    if grep -q '^[^ ]* [^ ]* cgroup ' /proc/mounts; then
        echo "there is a hierarchy of version 1"
        return 1
    fi
    failed=""
    while read -r line; do
        # Words are the program and its filters.
        # shellcheck disable=SC2086
        run $line </dev/null
    done </tests/plan
    [ -z "$failed" ] || {
        echo "failed:$failed"
        return 1
    }
}

if [ "${1:-}" = inside ]; then inside; else settle; fi
