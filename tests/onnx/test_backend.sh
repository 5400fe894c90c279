#!/bin/bash
# test_backend.sh - ONNX's own backend tests (Debian's libonnx-testdata): none wrong, and at least as many passed as here.
# A corrupted expectation must be seen.
set -u
least=1057
data=/usr/share/libonnx-testdata/data
tenon=$BUILD_DIR/tenon
[ -d "$data/node" ] || { echo "libonnx-testdata is not installed (scripts/setup does it): $data is missing"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$tenon" onnx-test --json -t 1 "$data" >"$out/all.json" || { echo "onnx-test failed"; grep '"wrong"' "$out/all.json"; exit 1; }
python3 - "$out/all.json" $least <<'P' || exit 1
import json, sys
t = json.load(open(sys.argv[1]))
by = {r: sum(c["result"] == r for c in t["cases"]) for r in ("passed", "wrong", "refused")}
assert by == {r: t[r] for r in by}, by
assert len(t["cases"]) == 1072, len(t["cases"])
for c in t["cases"]:
    assert (c["result"] == "passed") == (c["reason"] is None), c
    if c["result"] == "wrong": print("wrong:", c["name"], c["reason"])
assert t["wrong"] == 0
assert t["passed"] >= int(sys.argv[2]), t["passed"]
assert t["ops"]["Add"]["passed"] > 0
print(f"count: {t['passed']} of {len(t['cases'])} ONNX backend tests pass, {t['wrong']} wrong, {t['refused']} refused")
P
# The runner itself: a changed output is wrong, a missing one too.
for name in test_add test_argmax_default_axis_random test_relu; do
    cp -r "$data/node/$name" "$out/$name"
done
python3 - "$out" <<'P'
import sys
for name in ("test_add", "test_argmax_default_axis_random"):
    path = f"{sys.argv[1]}/{name}/test_data_set_0/output_0.pb"
    b = bytearray(open(path, "rb").read())
    b[-2] ^= 0x40
    open(path, "wb").write(b)
P
if "$tenon" onnx-test -t 1 "$out" >"$out/text"; then echo "changed outputs were not noticed"; exit 1; fi
grep -q '^3 cases: 1 passed, 2 wrong, 0 refused' "$out/text" || { echo "changed outputs:"; cat "$out/text"; exit 1; }
# Commands take .onnx where they take .tn.
"$tenon" explain "$data/node/test_add/model.onnx" >/dev/null || exit 1
"$tenon" verify "$data/node/test_softmax_axis_1/model.onnx" >/dev/null || exit 1
"$tenon" run "$data/node/test_reshape_zero_dim/model.onnx" --input shape=4xi64:2,0,4,1 >/dev/null 2>&1 || { echo "run with a shape"; exit 1; }
