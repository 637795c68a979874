#!/usr/bin/env bash
# The engine's benchmark on a machine with many cores that reaches no network.
#
#   benchmarks/many_cores.sh prepare DIRECTORY          here: wheels for its Python, and the native library
#   benchmarks/many_cores.sh run DIRECTORY RESULTS      there: install them beside what it has, and run
#
# The machine has Python 3.12 with numpy, onnx, onnxruntime, networkx, httpx and rich. DIRECTORY is what is carried
# along, some 20 MB. MODELS, ROUNDS, PATIENCE and WAIT may be set.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
models=${MODELS:-nasnet_mobile,pnasnet_mobile,inception_v1,densenet121,inception_v3,inception_v4,nasnet_large,pnasnet_large}
target=${TARGET_PYTHON:-3.12}

prepare() {
    mkdir -p "$1/wheels" "$1/native"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$1/wheels" \
        --python-version "$target" --only-binary=:all: --constraint "$root/constraints.txt" \
        --requirement "$root/benchmarks/many_cores.txt"
    PYTHONPATH=$root "$python" - "$1/native" <<'PYTHON'
import sys
from pathlib import Path

from agent_sdk.native import built

print(built(Path(sys.argv[1])))
PYTHON
    git -C "$root" describe --always --dirty=+ --abbrev=12 >"$1/commit"
    du -sh "$1"
}

run() {
    local carried results
    carried=$(cd "$1" && pwd)
    mkdir -p "$2"
    results=$(cd "$2" && pwd)
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --target "$site/packages" \
        "$carried"/wheels/*.whl
    mkdir -p "$site/cache/native"
    cp "$carried"/native/* "$site/cache/native/" 2>/dev/null || true
    export PYTHONPATH=$root:$site/packages HOPE_CACHE_DIR=$site/cache HOPE_COMMIT
    HOPE_COMMIT=$(cat "$carried/commit")
    "$python" -m agent_sdk.cli devices || true
    local model
    for model in ${models//,/ }; do
        CUDA_VISIBLE_DEVICES="" "$python" -m benchmarks.engine --models "$model" --processors ort \
            --rounds "${ROUNDS:-15}" --patience "${PATIENCE:-8}" --wait "${WAIT:-12}" --trace "$results" \
            --found "$results/found.json" --json "$results/engine.json" ||
            echo "$model failed with $?" >&2
    done
}

case ${1:-} in
prepare) prepare "$2" ;;
run) run "$2" "$3" ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
