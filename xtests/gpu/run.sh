#!/usr/bin/env bash
# Everything that needs a GPU, in some minutes: the moves and kernels of devices, conformance and the main job with 1 to 4 ranks
# on one GPU, ranks over NCCL, and the kernels under compute-sanitizer. Writes a report, and fails if anything failed.
#
#   xtests/gpu/run.sh [--binaries DIR] [--report FILE]
#
# Without --binaries it builds what it runs. With it, DIR holds what `xtests/gpu/run.sh --build DIR` put there on a machine
# with a Rust toolchain, and the machine with the GPU needs none.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD

build() {
    mkdir -p "$1"
    cargo build --release -p xtests --features cuda,nccl --bin conformance &&
        cargo build --release -p shard-tensor --features cuda,nccl --example downscale || return 1
    local target=${CARGO_TARGET_DIR:-target}/release
    cp "$target/conformance" "$target/examples/downscale" "$1/" || return 1
    # The tests of kernels and of moves.
    local -A features=([shard-comm]=cuda,nccl [shard-ops]=cuda)
    for crate in shard-comm shard-ops; do
        local test
        test=$(cargo test --release -p "$crate" --features "${features[$crate]}" --lib --no-run 2>&1 |
            sed -n 's/.*Executable.*(\(.*\))/\1/p' | head -n 1)
        cp "$test" "$1/$crate-tests" || return 1
    done
}

binaries='' report=gpu-report.txt
while [ $# -gt 0 ]; do
    case $1 in
    --build) build "$2"; exit ;;
    --binaries) binaries=$(realpath "$2"); shift 2 ;;
    --report) report=$2; shift 2 ;;
    *) sed -n '2,9p' "$0"; exit 2 ;;
    esac
done
if [ -z "$binaries" ]; then
    binaries=$root/target/gpu
    build "$binaries" || exit 1
fi

# Libraries inside Python packages carry their major version in their name; the loader looks for it without.
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
if command -v python3 >/dev/null; then
    for folder in $(python3 -c 'import site, sys; print("\n".join(site.getsitepackages() + [site.getusersitepackages()]))'); do
        for library in "$folder"/nvidia/*/lib/lib{nvrtc,cudart,cublas,cublasLt,cudnn,nccl}*.so*; do
            [ -e "$library" ] || continue
            name=$(basename "$library")
            ln -sf "$library" "$links/$name"
            ln -sf "$library" "$links/${name%%.so*}.so"
        done
    done
fi
export LD_LIBRARY_PATH=$links${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

failed=0
say() { printf '%s\n' "$*" | tee -a "$report"; }
# Runs a command under a watchdog; its last lines go into the report.
try() {
    local name=$1 seconds=$2 log begin status
    shift 2
    log=$(mktemp)
    begin=$(date +%s)
    timeout "$seconds" "$@" >"$log" 2>&1
    status=$?
    if [ $status -eq 0 ]; then say "pass  $name ($(($(date +%s) - begin)) s)"; else
        failed=1
        say "FAIL  $name (status $status)"
    fi
    tail -n "${LINES_KEPT:-4}" "$log" | sed 's/^/      /' | tee -a "$report"
    rm -f "$log"
}

: >"$report"
say "GPU: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo none)"
say "commit: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"

try "moves of devices, communicator contract" 240 "$binaries/shard-comm-tests" cuda
try "kernels: sources compile" 240 "$binaries/shard-ops-tests" cuda
for ranks in 1 2 3 4; do
    try "conformance, $ranks ranks on one GPU" 120 \
        "$binaries/conformance" xtests/data --device cuda --ranks "$ranks" --budget 40
done
for mesh in 1 2 3x1 2x2; do
    LINES_KEPT=12 try "main job, mesh $mesh, against one rank on the host" 180 \
        "$binaries/downscale" --device cuda --mesh "$mesh" --verify --out "$links/out" \
        --data shard-tensor/examples/downscale/data
done
# NCCL: one rank for each GPU; several on one where the library lets them, which it is new to (what it lacks, it hangs on), with
# few blocks each.
try "NCCL: contract with one rank per GPU" 120 "$binaries/shard-comm-tests" nccl
try "conformance over NCCL, 1 rank" 120 \
    "$binaries/conformance" xtests/data --device cuda --backend nccl --ranks 1 --budget 30
try "main job over NCCL, 1 rank, against one rank on the host" 180 \
    "$binaries/downscale" --device cuda --backend nccl --mesh 1 --verify --out "$links/out" \
    --data shard-tensor/examples/downscale/data
nccl=$(grep -aom1 'NCCL version [0-9.]*' "$links/libnccl.so" 2>/dev/null | grep -o '[0-9.]*$' || echo 0)
say "NCCL: $nccl"
if [ "$(printf '%s\n' 2.30 "$nccl" | sort -V | head -n 1)" = 2.30 ]; then
    for ranks in 2 4; do
        try "conformance over NCCL, $ranks ranks on one GPU" 120 \
            env NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=2 \
            "$binaries/conformance" xtests/data --device cuda --backend nccl --ranks "$ranks" --jobs 1 --budget 30
    done
    LINES_KEPT=12 try "main job over NCCL, mesh 2x2 on one GPU, against one rank on the host" 180 \
        env NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=2 \
        "$binaries/downscale" --device cuda --backend nccl --mesh 2x2 --verify --out "$links/out" \
        --data shard-tensor/examples/downscale/data
else
    say "skip  several ranks on one GPU over NCCL: it lets them from 2.30 on"
fi
try "main job, 200 steps" 240 "$binaries/downscale" --device cuda --mesh 1 --out "$links/out" \
    --data shard-tensor/examples/downscale/data
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        try "$tool on the kernels" 300 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$binaries/conformance" xtests/data --device cuda --ranks 2 --filter conv2d --budget 10
    done
else
    say "skip  compute-sanitizer is not installed"
fi
exit $failed
