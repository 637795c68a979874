#!/usr/bin/env bash
# The engine's benchmark on a machine with many cores that reaches no network, within nine minutes: ours against ONNX
# Runtime, plans against what was planned, and ours beside a plain session that spins.
#
#   where there is a network:    benchmarks/gpu.sh wheels WHEELS
#   there:                       benchmarks/many_cores.sh WHEELS RESULTS
#
# MODELS, MINUTES (of the first part) and SPINNING (networks of the second part) may be set.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
wheels=$1 results=$2
models=${MODELS:-nasnet_mobile,pnasnet_mobile,inception_v1,densenet121,inception_v3,inception_v4}
minutes=${MINUTES:-5}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$site/packages" "$wheels"/*.whl
export PYTHONPATH="$PWD:$site/packages" PYTHONUNBUFFERED=1 HOPE_CACHE_DIR="$site/cache" CUDA_VISIBLE_DEVICES=""
BENCHMARKED_COMMIT=$(cat "$wheels/commit")
export BENCHMARKED_COMMIT
mkdir -p "$results"
python3 agent_sdk/native/building.py || echo "no native library: plans run in sequence, and the figures are not those of the engine" >&2
python3 -W ignore -m benchmarks.engine --models "$models" --processors ort --minutes "$minutes" --rounds 9 \
    --patience 8 --wait 5 --found "$results/found.json" --json "$results/engine.json" 2>&1 | tee "$results/engine.log"
timeout 110 python3 -W ignore -m benchmarks.beside --models "${SPINNING:-nasnet_mobile,inception_v3}" --rounds 15 \
    --json "$results/beside.json" 2>&1 | tee "$results/beside.log"
