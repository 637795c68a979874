#!/usr/bin/env bash
# Runs the GPU benchmark on a machine without a network: Python 3.12 with torch, onnx, onnxruntime, numpy,
# networkx, httpx and rich must be there; whatever else is missing is taken from a folder of wheels.
#
#   where there is a network:    benchmarks/gpu.sh wheels WHEELS
#   where the GPU is:            benchmarks/gpu.sh run WHEELS RESULTS [arguments of benchmarks.gpu]
set -euo pipefail
cd "$(dirname "$0")/.."
packages=$(grep -v '^#' benchmarks/many_cores.txt)

case "${1:-}" in
wheels)
    mkdir -p "$2"
    platforms=$(printf -- '--platform manylinux%s_x86_64 ' _2_28 _2_27 _2_24 _2_17 2014 1)
    # shellcheck disable=SC2086
    python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        $platforms --constraint constraints.txt --dest "$2" $packages
    git describe --always --dirty=+ --abbrev=12 >"$2/commit"
    ;;
run)
    wheels=$2 results=$3
    shift 3
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
    export PYTHONPATH="$PWD:$site" PYTHONUNBUFFERED=1 XDG_CACHE_HOME="${XDG_CACHE_HOME:-$site/cache}"
    BENCHMARKED_COMMIT=$(cat "$wheels/commit")
    export BENCHMARKED_COMMIT
    mkdir -p "$results"
    python3 agent_sdk/native/building.py || true # without its compiler plans run in sequence
    python3 -W ignore -m benchmarks.gpu --json "$results/gpu.json" --trace "$results" "$@" 2>&1 | tee "$results/gpu.log"
    ;;
*)
    sed -n '2,6s/^# *//p' "$0"
    exit 2
    ;;
esac
