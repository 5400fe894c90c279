#!/bin/bash
# States and constants of builtin models take the memory of their values, once: within 2 %, and what lies between aligned places,
# on the CPU at each vector width, and on GPUs. What explain prints as a sum is the sum of its buffers. A short campaign: each model
# for one device or width in turns.
# Labels: slow
set -u
. "$SOURCE_DIR/tests/support/campaign.sh"
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TENON_CACHE_DIR=$work/cache
failed=0 checked=0 i=0

cat >"$work/check.py" <<'EOF'
import json, re, sys
graph, explained, model, device = open(sys.argv[1]).read(), json.load(open(sys.argv[2])), sys.argv[3], sys.argv[4]
size = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2}
want = n = 0
for dtype, dims in re.findall(r'[(,]\s*state (?:"[^"]*"|\S+) (\w+)\[([0-9,]*)\]', graph):
    bytes_, n = size.get(dtype, 1), n + 1
    for d in dims.split(",") if dims else []:
        bytes_ *= int(d)
    want += bytes_
states = [b for b in explained["buffers"] if b["slot"] in (1, 2)]
have = sum(b["bytes"] for b in states)
room = 512 * len(states)
problems = []
if not want <= have <= 1.02 * want:
    problems.append(f"states of {want} bytes are held in {have}")
if not have <= explained["state_bytes"] <= have + room:
    problems.append(f"{explained['state_bytes']} bytes are planned for states of {have}")
slots = {"arena_bytes": (0,), "state_bytes": (1, 2), "const_bytes": (3,)}
for key, which in slots.items():
    ends = sum(max([0] + [b["offset"] + b["bytes"] for b in explained["buffers"] if b["slot"] == s]) for s in which)
    if not ends <= explained[key] <= ends + 512 * len(which):
        problems.append(f"{key} is {explained[key]}, its buffers end at {ends}")
total = explained["arena_bytes"] + explained["state_bytes"] + explained["const_bytes"] + explained["scratch_bytes"]
if explained["program_bytes"] + explained["session_bytes"] != total:
    problems.append(f"program {explained['program_bytes']} and session {explained['session_bytes']} are not {total}")
for p in problems:
    print(f"test_states: @{model} for {device}: {p}")
sys.exit(bool(problems))
EOF

check() { # MODEL DEVICE OPTIONS..
    local model=$1 device=$2
    shift 2
    campaign_has $((i++)) 4 || return 0
    "$tenon" explain "@$model" --device "$device" --json "$@" >"$work/e" 2>"$work/out" || { cat "$work/out"; failed=1; return; }
    python3 "$work/check.py" "$work/g" "$work/e" "$model" "$device ${TENON_CPU:-} $*" || failed=1
    checked=$((checked + 1))
}

for model in mlp mlp:8x250 mlp:36x256x1 linear:256x512x512 linear:256x500x512 matmul:8x512x512 matmul:1x2048x1024 matmul:64x100x300 \
    linear_softmax:197x500x512 linear_softmax:65x100x300 layernorm:64x1000 conv:2x28x28x32x33 attention cnn digits-train:16 classifier-train:32; do
    "$tenon" emit "@$model" --target=graph >"$work/g" 2>/dev/null || { echo "test_states: no graph of @$model"; failed=1; }
    for cpu in x86 avx2 sse2; do TENON_CPU=$cpu check "$model" cpu --threads 2; done
    TENON_CPU=avx2 check "$model" cpu --fusion 0 --threads 1
    check "$model" null
done
if "$tenon" devices | grep -q '^opencl .*OpenCL'; then
    for model in mlp:36x256x1 linear:8x512x512 matmul:1x2048x1024 classifier-train:32; do
        "$tenon" emit "@$model" --target=graph >"$work/g" 2>/dev/null
        check "$model" opencl
    done
fi
[ "$failed" = 0 ] || exit 1
echo "count: states of $checked plans take the memory of their values"
