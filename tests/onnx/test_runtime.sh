#!/bin/bash
# test_runtime.sh - every builtin model as ONNX: read back it gives the same values; where the onnx package and ONNX Runtime are
# installed (bench/rivals/setup ort, or TENON_ONNX_PYTHON names a Python that has both), these agree.
# Labels: long
set -u
tenon=$BUILD_DIR/tenon
python=${TENON_ONNX_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/tenon/rivals/venv/bin/python}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
models=$("$tenon" help models | grep -oE '^ *@[a-z0-9_]+(-train)?' | tr -d ' ' | sort -u | sed 's/^@digits-train$/@digits-train:8/; s/^@classifier-train$/@classifier-train:8/')
[ "$(echo "$models" | wc -l)" -ge 15 ] || { echo "too few models: $models"; exit 1; }
n=0
for model in $models; do
    "$tenon" emit "$model" --target=onnx -o "$dir/m.onnx" || { echo "$model: emit"; exit 1; }
    "$tenon" run -q -t 1 --json "$model" >"$dir/a.json" || { echo "$model: run"; exit 1; }
    "$tenon" run -q -t 1 --json "$dir/m.onnx" >"$dir/b.json" || { echo "$model: run the file"; exit 1; }
    python3 - "$model" "$dir/a.json" "$dir/b.json" <<'P' || exit 1
import json, sys
model, a, b = sys.argv[1], *(json.load(open(f))["outputs"] for f in sys.argv[2:])
for name, o in a.items():
    x, y = o["data"], b[name]["data"]
    scale = max(map(abs, x), default=0)
    assert len(x) == len(y) and o["dtype"] == b[name]["dtype"] and o["shape"] == b[name]["shape"], (model, name)
    assert all(abs(p - q) <= 1e-4 * scale for p, q in zip(x, y)), (model, name)
P
    n=$((n + 1))
done
echo "count: $n builtin models to ONNX and back"
"$tenon" emit @mlp --target=onnx 2>/dev/null && { echo "onnx without a file"; exit 1; }
"$tenon" emit @mlp:2x256x8 --target=onnx --external -o "$dir/e.onnx" || exit 1
[ "$(stat -c %s "$dir/e.onnx.data")" -ge 262144 ] && [ "$(stat -c %s "$dir/e.onnx")" -lt 4096 ] || { echo "no external data"; exit 1; }
mkdir "$dir/zoo" && "$tenon" emit @cnn:2 --target=onnx -o "$dir/zoo/cnn.onnx" && "$tenon" emit @mlp:2x16x4 --target=onnx -o "$dir/zoo/mlp.onnx" || exit 1
"$tenon" bench models -q -t 1 --seconds 0.01 --json "$dir/zoo" >"$dir/rows.json" || { echo "bench models"; exit 1; }
python3 - "$dir/rows.json" <<'P' || exit 1
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert [(r["work"], r["case"], r["batch"]) for r in rows] == [("models", "cnn.onnx", 2), ("models", "mlp.onnx", 4)], rows
assert all(r["median_us"] > 0 and r["max_abs_err"] <= r["err_bound"] for r in rows), rows
P
"$tenon" bench models "$dir/nothing" >/dev/null 2>&1 && { echo "a model that is not there"; exit 1; }
"$python" -c 'import onnx, onnxruntime, numpy' 2>/dev/null || { echo "skipped: ONNX Runtime is not installed (bench/rivals/setup ort)"; exit 77; }
# shellcheck disable=SC2086
"$python" "$(dirname "$0")/runtime.py" "$tenon" "$dir" $models
