#!/usr/bin/env bash
# Everything that needs a GPU, in some minutes: the moves and kernels of devices, conformance and the main job with 1 to 4 ranks
# on one GPU, ranks over NCCL, benchmarks in turns with PyTorch, and the kernels under compute-sanitizer. Writes a report, and
# fails if anything failed. What is not there is left out, and said.
#
#   xtests/gpu/run.sh [--binaries DIR] [--report FILE] [--logs DIR] [--skip TEXT]... [--most SECONDS] [--device emulated-cuda]
#   xtests/gpu/run.sh --build DIR [--device emulated-cuda]
#
# Without --binaries it builds what it runs. With it, DIR holds what --build put there on a machine with a Rust toolchain, and the
# machine with the GPU needs none. --skip leaves out what has TEXT in its name; --most limits the time of each thing; --logs keeps
# all that programs wrote. On a GPU, what is not timed runs side by side. With --device emulated-cuda all of it runs, shorter and
# slowly, where there is no GPU: that this script works is all it shows.
set -uo pipefail
from=$PWD
cd "$(dirname "$0")/../.."
root=$PWD

# Paths are meant from where the script was called.
path() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s/%s' "$from" "$1" ;; esac; }
usage() {
    sed -n '2,14s/^# \{0,1\}//p' "$root/xtests/gpu/run.sh" >&2
    exit 2
}

device=cuda binaries='' report=$from/gpu-report.txt skips=() most=100000 logs='' build_to=''
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || usage
    case $1 in
    --build) build_to=$(path "$2") ;;
    --binaries) binaries=$(path "$2") ;;
    --report) report=$(path "$2") ;;
    --logs) logs=$(path "$2") ;;
    --skip) skips+=("$2") ;;
    --most) most=$2 ;;
    --device) device=$2 ;;
    *) usage ;;
    esac
    shift 2
done
case $device in
cuda) real=1 feature=cuda ;;
emulated-cuda) real=0 feature=cuda-emulated ;;
*) usage ;;
esac
[[ $most =~ ^[1-9][0-9]*$ ]] || usage

# The program that a build of tests names: that of the library, or the one that arguments ask for.
test_program() {
    local crate=$1 features=$2 log
    shift 2
    [ $# -gt 0 ] || set -- --lib
    log=$(cargo test --release -p "$crate" --features "$features" "$@" --no-run 2>&1) || {
        printf '%s\n' "$log" >&2
        return 1
    }
    sed -n 's/.*Executable.*(\(.*\))/\1/p' <<<"$log" | head -n 1
}
build() {
    local target=${CARGO_TARGET_DIR:-target}/release memory devices moves kernels
    mkdir -p "$1" &&
        cargo build --release -p xtests --features "$feature,nccl" --bin conformance --bin bench &&
        cargo build --release -p shard-tensor --features "$feature,nccl" --example downscale &&
        memory=$(test_program shard-device "$feature") &&
        devices=$(test_program shard-device "$feature" --test it) &&
        moves=$(test_program shard-comm-tests "$feature,nccl" --test it) &&
        kernels=$(test_program shard-ops-tests "$feature" --test it) &&
        cp "$target/conformance" "$target/bench" "$target/examples/downscale" "$1/" &&
        cp "$memory" "$1/shard-device-tests" &&
        cp "$devices" "$1/shard-device-it" &&
        cp "$moves" "$1/shard-comm-tests" &&
        cp "$kernels" "$1/shard-ops-tests"
}
if [ -n "$build_to" ]; then
    build "$build_to"
    exit
fi
if [ -z "$binaries" ]; then
    binaries=$(realpath -m "${CARGO_TARGET_DIR:-target}/gpu")
    build "$binaries" || exit 1
fi
for program in conformance bench downscale shard-device-tests shard-device-it shard-comm-tests shard-ops-tests; do
    [ -x "$binaries/$program" ] || {
        echo "no $program in $binaries: put it there with --build" >&2
        exit 2
    }
done

# Libraries inside Python packages, and those that the system has without headers, carry their major version in their name; the
# loader looks for them without. Of several versions the newest is taken.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=${logs:-$work/logs}
links=$work/links
mkdir -p "$links" "$logs" || exit 2
folders() {
    command -v python3 >/dev/null || return 0
    python3 -c '
import site, sys
print("\n".join(dict.fromkeys(sys.path + site.getsitepackages() + [site.getusersitepackages()])))'
}
libraries() {
    folders | while IFS= read -r folder; do
        [ -n "$folder" ] || continue
        for library in "$folder"/nvidia/*/lib/lib{nvrtc,cudart,cublas,cudnn,cufft,nccl}*.so*; do
            [ -e "$library" ] && printf '%s\t%s\n' "$(basename "$library")" "$library"
        done
    done | sort -V | cut -f 2
}
if command -v ldconfig >/dev/null; then
    # The first that the loader would find.
    system=$(ldconfig -p | sed -n 's/.*libnccl\.so.* => //p' | head -n 1)
    [ -z "$system" ] || ln -sf "$system" "$links/libnccl.so"
fi
while IFS= read -r library; do
    name=$(basename "$library")
    ln -sf "$library" "$links/$name"
    ln -sf "$library" "$links/${name%%.so*}.so"
done < <(libraries)
export LD_LIBRARY_PATH=$links${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

say() { printf '%s\n' "$*" | tee -a "$report"; }
skipped() {
    local skip
    for skip in "${skips[@]}"; do
        [[ $1 == *"$skip"* ]] && say "skip  $1: as told" && return 0
    done
    return 1
}
# Runs a command under a watchdog; its last lines go into the report, in one piece. Tests that are none are a failure.
try() {
    local name=$1 seconds=$2 log begin status end
    shift 2
    skipped "$name" && return
    log=$logs/${name//[^A-Za-z0-9]/_}.log
    [ "$seconds" -le "$most" ] || seconds=$most
    begin=$(date +%s)
    timeout -k 10 "$seconds" "$@" >"$log" 2>&1
    status=$?
    if [ $status -eq 0 ] && grep -q '^test result: ok\. 0 passed' "$log"; then status="0, of no test"; fi
    local kept=${LINES_KEPT:-4}
    [ "$status" = 0 ] || kept=40
    case $status in
    0) end="pass  $name ($(($(date +%s) - begin)) s)" ;;
    124 | 137) end="FAIL  $name (not finished in $seconds s)" ;;
    *) end="FAIL  $name (status $status)" ;;
    esac
    [ "$status" = 0 ] || touch "$work/failed"
    say "$(printf '%s\n' "$end" && tail -n "$kept" "$log" | sed 's/^/      /')"
}
# The same beside what runs already, on a GPU: an emulated one takes all cores as it is.
beside() {
    if [ $real = 1 ]; then try "$@" & else try "$@"; fi
}

: >"$report" || exit 2
if [ $real = 1 ]; then
    say "GPU: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo none)"
else
    say "GPU: none, played by the host: no time means anything"
fi
say "commit: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"

# How much, on a GPU and where there is none.
if [ $real = 1 ]; then
    many=(1 3 4) halves=(bf16 f16) meshes=(1 2 3x1 2x2) budget=60 verified=() long=(--steps 200) quick=() turns=3 job=240 moves=(comm --ranks 1,2,4)
else
    many=() halves=(bf16) meshes=(2) budget=2 verified=(--steps 1 --dtype f64) long=(--steps 1) quick=(--quick) turns=1 job=1800 moves=(--ranks 1,2)
fi
fields=shard-tensor/examples/data

# Results of each go to a folder of its own.
main_job() {
    local name=$1 mesh=$2
    shift 2
    LINES_KEPT=12 beside "$name, against one rank on the host" "$job" "$@" --mesh "$mesh" --verify "${verified[@]}" \
        --out "$work/out of $name" --data "$fields"
}

# First and alone, since most of the time goes to compiling kernels, which what follows finds compiled.
try "conformance, 2 ranks on one GPU" 120 "$binaries/conformance" --device "$device" --ranks 2 --budget "$budget"
beside "memory, copies and folds, libraries" 240 "$binaries/shard-device-it" cuda
beside "transfers, compilers, descriptions for libraries" 240 "$binaries/shard-device-tests" cuda
beside "communicator contract" 240 "$binaries/shard-comm-tests" cuda::
beside "kernels: sources compile, ops on the device" 240 "$binaries/shard-ops-tests" cuda
for ranks in "${many[@]}"; do
    beside "conformance, $ranks ranks on one GPU" 120 \
        "$binaries/conformance" --device "$device" --ranks "$ranks" --budget "$budget"
done
for float in "${halves[@]}"; do
    beside "conformance in $float, 2 ranks on one GPU" 120 \
        "$binaries/conformance" --device "$device" --ranks 2 --float "$float" --budget "$budget"
done
for mesh in "${meshes[@]}"; do
    main_job "main job, mesh $mesh" "$mesh" "$binaries/downscale" --device "$device"
done
# By cuFFT, which is not used unless it is asked for: see cufft.rs.
for ranks in 1 2; do
    beside "transforms by cuFFT, $ranks ranks" 120 \
        env SHARD_CUFFT=1 "$binaries/conformance" --device "$device" --ranks "$ranks" --filter fft --budget "$budget"
done
# NCCL: one rank for each GPU; several on one where the library lets them, which it is new to (what it lacks, it hangs on), with
# few blocks each.
beside "NCCL: contract with one rank per GPU" 120 "$binaries/shard-comm-tests" nccl::
beside "conformance over NCCL, 1 rank" 120 \
    "$binaries/conformance" --device "$device" --backend nccl --ranks 1 --budget "$budget"
main_job "main job over NCCL, 1 rank" 1 "$binaries/downscale" --device "$device" --backend nccl
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        beside "$tool on the kernels" 300 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$binaries/conformance" --device "$device" --ranks 2 --jobs 1 --patience 250 --budget "$budget"
    done
else
    say "skip  compute-sanitizer is not installed"
fi
wait
if [ $real = 1 ]; then
    nccl=$(grep -ao 'NCCL version [0-9][0-9.]*' "$links/libnccl.so" 2>/dev/null | head -n 1 | grep -o '[0-9.]*$')
    say "NCCL: ${nccl:-none}"
else
    nccl=2.30
fi
if [ "$(printf '%s\n' 2.30 "${nccl:-0}" | sort -V | head -n 1)" = 2.30 ]; then
    several=(env NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=2)
    for ranks in 2 4; do
        beside "conformance over NCCL, $ranks ranks on one GPU" 120 "${several[@]}" \
            "$binaries/conformance" --device "$device" --backend nccl --ranks "$ranks" --jobs 1 --budget "$budget"
    done
    main_job "main job over NCCL, mesh 2x2 on one GPU" 2x2 "${several[@]}" "$binaries/downscale" --device "$device" --backend nccl
    wait
else
    say "skip  several ranks on one GPU over NCCL: it lets them from 2.30 on"
fi
try "main job, long" "$job" "$binaries/downscale" --device "$device" --mesh 1 "${long[@]}" --out "$work/out" --data "$fields"

# Moves beside copies of the same bytes, with several ranks on the GPU; the cost of calls; then, on one rank, what PyTorch does too,
# the two in turns.
LINES_KEPT=100 try "benchmarks: moves and calls" 400 \
    "$binaries/bench" pack redistribute dispatch "${moves[@]}" --device "$device" --seconds 0.5 "${quick[@]}"
torch=()
if [ $real = 1 ]; then
    python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && torch=(--device cuda)
else
    python3 -c 'import torch' 2>/dev/null && torch=(--device cpu)
fi
[ ${#torch[@]} -gt 0 ] || say "skip  PyTorch beside the benchmarks: python3 has none that sees the device"
kernels=(elementwise norm)
[ $real = 0 ] || kernels+=(matmul conv attention train)
for turn in $(seq "$turns"); do
    LINES_KEPT=100 try "benchmarks: kernels, turn $turn" 400 "$binaries/bench" "${kernels[@]}" --device "$device" --ranks 1 \
        --seconds 0.5 --json "$work/ours.json" "${quick[@]}"
    [ ${#torch[@]} -eq 0 ] || LINES_KEPT=1 try "benchmarks: PyTorch, turn $turn" 300 \
        python3 xtests/gpu/torch_reference.py "${torch[@]}" --seconds 0.5 --json "$work/torch.json" "${quick[@]}"
done
if [ -s "$work/torch.json" ] && [ -s "$work/ours.json" ]; then
    LINES_KEPT=100 try "benchmarks: ratios to PyTorch" 60 \
        python3 xtests/gpu/torch_reference.py --compare "$work/ours.json" --with "$work/torch.json"
    for file in ours torch; do cp "$work/$file.json" "${report%.txt}-$file.json"; done
fi

[ ! -e "$work/failed" ] || {
    say "something FAILED"
    exit 1
}
say "all passed"
