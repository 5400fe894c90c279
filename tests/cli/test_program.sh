#!/bin/bash
# Programs as files: `tenon compile` and `tenon run` of what it wrote; programs of ONNX models in the cache: found again, and compiled
# again as soon as the model, its external data, an option or the processor is another one, or the file in the cache is damaged.
set -u
tenon=$BUILD_DIR/tenon
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
case $("$tenon" devices 2>/dev/null) in *avx512* | *avx2* | *sse2*) ;; *) echo "skipped: no machine code on this processor"; exit 77 ;; esac
case ${TENON_CPU:-x86} in x86 | avx512* | avx2) ;; *) echo "skipped: no machine code by TENON_CPU=$TENON_CPU"; exit 77 ;; esac
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TENON_CACHE_DIR=$work/cache
failed=0
fail() { echo "test_program: $*"; failed=1; }

# make FILE SCALE [DATA]: y = relu(x w), x f32[batch,64], w f32[64,32] in the file, or in another one
cat >"$work/make.py" <<'EOF'
import struct, sys
def varint(v):
    out = b""
    while v > 127: out, v = out + bytes([v & 127 | 128]), v >> 7
    return out + bytes([v])
def field(n, v):
    if isinstance(v, int): return varint(n << 3) + varint(v)
    v = v.encode() if isinstance(v, str) else v
    return varint(n << 3 | 2) + varint(len(v)) + v
def port(name, dims):
    shape = b"".join(field(1, field(1, d) if isinstance(d, int) else field(2, d)) for d in dims)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))
path, scale, data = sys.argv[1], float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
raw = struct.pack("<2048f", *[scale * ((i * 37) % 101 - 50) / 50 for i in range(2048)])
w = field(1, 64) + field(1, 32) + field(2, 1) + field(8, "w")
if data:
    open(data, "wb").write(raw)
    w += field(13, field(1, "location") + field(2, data.split("/")[-1])) + field(14, 1)
else:
    w += field(9, raw)
nodes = field(1, field(1, "x") + field(1, "w") + field(2, "h") + field(4, "MatMul"))
nodes += field(1, field(1, "h") + field(2, "y") + field(4, "Relu"))
graph = nodes + field(2, "g") + field(5, w) + field(11, port("x", ["batch", 64])) + field(12, port("y", ["batch", 32]))
open(path, "wb").write(field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 17)))
EOF
make() { python3 "$work/make.py" "$@" || exit 1; }
run() { "$tenon" run --dim batch=5 --threads 1 "$@" >"$work/out" 2>"$work/err" || fail "run $*: $(cat "$work/err")"; }
how() { grep -o 'loaded\|compiled' "$work/err"; }
# The file is written beside what the user does next.
until_loaded() {
    for _ in $(seq 100); do
        run "$@"
        [ "$(how)" = loaded ] && return 0
        sleep 0.1
    done
    fail "run $*: never found in the cache"
    return 1
}
compiled() { # what.. -- options: is compiled, with what is in $work/want
    local what=$1
    shift
    run "$@"
    [ "$(how)" = compiled ] || fail "$what: $(cat "$work/err")"
}
same() { cmp -s "$work/want" "$work/out" || fail "$1: other values"; }

# ---- files of `tenon compile`
make "$work/net.onnx" 1
run "$work/net.onnx" --no-cache
cp "$work/out" "$work/want"
"$tenon" compile "$work/net.onnx" --dim batch=5 --threads 1 -o "$work/net.program" 2>"$work/err" || fail "compile: $(cat "$work/err")"
grep -q 'kernels for 1 thread' "$work/err" || fail "compile says: $(cat "$work/err")"
"$tenon" run "$work/net.program" >"$work/out" 2>"$work/err" || fail "run of a program: $(cat "$work/err")"
[ "$(how)" = loaded ] || fail "a program is compiled: $(cat "$work/err")"
same "a program"
"$tenon" compile @digits-train:8 --mode loop -o "$work/train" 2>/dev/null || fail "compile of a training step"
"$tenon" run "$work/train" --steps 5 >"$work/out" 2>/dev/null || fail "run of a training step"
"$tenon" run @digits-train:8 --mode loop --steps 5 >"$work/want5" 2>/dev/null
cmp -s "$work/want5" "$work/out" || fail "a training step has other losses"
[ "$("$tenon" compile @softmax:2x5 -o "$work/s" --json 2>/dev/null | grep -c '"kernels": *[1-9]')" = 1 ] || fail "compile --json"
"$tenon" explain "$work/train" >/dev/null 2>"$work/err" && fail "explain takes a program"
grep -q 'tenon run' "$work/err" || fail "explain of a program: $(cat "$work/err")"
"$tenon" compile @softmax:2x5 --mode immediate -o "$work/s" >/dev/null 2>"$work/err" && fail "mode immediate as a file"
"$tenon" compile @softmax:2x5 >/dev/null 2>&1
[ $? = 2 ] || fail "compile without --output"
printf 'TNPROG\r\nand nothing' >"$work/broken"
"$tenon" run "$work/broken" >/dev/null 2>"$work/err" && fail "a broken program runs"
grep -q 'damaged' "$work/err" || fail "a broken program: $(cat "$work/err")"

# ---- the cache
programs() { find "$work/cache" -name '*.program' 2>/dev/null | wc -l; }
[ "$(programs)" = 0 ] || fail "--no-cache and compile leave programs in the cache"
compiled "first" "$work/net.onnx"
same "first"
until_loaded "$work/net.onnx"
same "from the cache"
[ "$(programs)" = 1 ] || fail "$(programs) programs"
"$tenon" cache stats | grep -q '^files  *1$' || fail "stats: $("$tenon" cache stats)"
run "$work/net.onnx" --seed 2 && [ "$(how)" = loaded ] || fail "another seed of inputs compiles"
cp "$work/net.onnx" "$work/same.onnx"
compiled "a copy of the model" "$work/same.onnx"
compiled "--no-cache" "$work/net.onnx" --no-cache
compiled "another mode" "$work/net.onnx" --mode graph
compiled "another fusion level" "$work/net.onnx" --fusion 1
compiled "another number of threads" "$work/net.onnx" --threads 2
compiled "another size" "$work/net.onnx" --dim batch=6
compiled "another dtype" "$work/net.onnx" --dtype bf16
TENON_CPU=sse2 compiled "another processor" "$work/net.onnx"
until_loaded "$work/net.onnx"
same "after all of them"

touch -r "$work/net.onnx" "$work/times"
make "$work/net.onnx" 2
touch -r "$work/times" "$work/net.onnx" # as long as it was, and of the same time
compiled "another model with the same times" "$work/net.onnx"
cmp -s "$work/want" "$work/out" && fail "another model, the same values"
cp "$work/out" "$work/want"
until_loaded "$work/net.onnx"
same "the new model from the cache"

key=$(ls -t "$work"/cache/*.program | head -1)
for damage in 'truncate -s 5000' 'truncate -s 0' 'chmod o+w'; do
    $damage "$key"
    compiled "$damage" "$work/net.onnx"
    same "$damage"
    until_loaded "$work/net.onnx"
done
printf 'x' | dd of="$key" bs=1 seek=700 conv=notrunc 2>/dev/null
compiled "a changed byte" "$work/net.onnx"
same "a changed byte"

make "$work/out.onnx" 1 "$work/out.data"
compiled "external data" "$work/out.onnx"
cp "$work/out" "$work/want"
until_loaded "$work/out.onnx"
same "external data"
make "$work/temp.onnx" 3 "$work/out.data"
compiled "other external data" "$work/out.onnx"
cmp -s "$work/want" "$work/out" && fail "other external data, the same values"

# ---- open dims: one program for all sizes, by inputs or by name; other ranges have their own
count_compiled() { # options of each run: how many of them compiled
    local n=0
    for size in "$@"; do
        # shellcheck disable=SC2086 # words of one run
        "$tenon" run "$work/net.onnx" --threads 1 --dim batch=1..64 $size >"$work/out" 2>"$work/err" || fail "open dims, $size: $(cat "$work/err")"
        [ "$(how)" = compiled ] && n=$((n + 1))
        [ "$(how)" = loaded ] || for _ in $(seq 100); do
            sleep 0.1
            [ "$(find "$work/cache" -name 'tenon-*' | wc -l)" = 0 ] && break
        done
    done
    echo $n
}
# shellcheck disable=SC2054 # words
sizes=('--input x=3x64xf32:1' '--input x=64x64xf32:0.5' '--input x=1x64xf32:2' '--dim batch=7' '--dim batch=40')
[ "$(count_compiled "${sizes[@]}")" = 2 ] || fail "inputs of three sizes and two sizes by name: not two programs"
[ "$(count_compiled "${sizes[@]}")" = 0 ] || fail "sizes of before compile again"
for size in 3 64; do # the values are those of a program for that size
    "$tenon" run "$work/net.onnx" --threads 1 --input "x=${size}x64xf32:0.5" --no-cache --limit -1 >"$work/want" 2>/dev/null
    "$tenon" run "$work/net.onnx" --threads 1 --dim batch=1..64 --input "x=${size}x64xf32:0.5" --limit -1 >"$work/out" 2>"$work/err"
    [ "$(how)" = loaded ] || fail "batch $size compiles"
    same "batch $size of a program for 1 to 64"
done
"$tenon" run "$work/net.onnx" --threads 1 --dim batch=1..64 --input x=65x64xf32:1 >/dev/null 2>"$work/err" && fail "a batch of 65 runs"
grep -q 'dim batch is 65: expected 1 to 64' "$work/err" || fail "a batch of 65: $(cat "$work/err")"
"$tenon" run "$work/net.onnx" --threads 1 --dim batch=1..64 --input x=3x65xf32:1 >/dev/null 2>"$work/err" && fail "65 columns run"
grep -q 'another shape' "$work/err" || fail "65 columns: $(cat "$work/err")"

until_loaded "$work/out.onnx" # nothing is being written then
"$tenon" cache prune >/dev/null || fail "prune"
[ "$(programs)" = 0 ] || fail "prune leaves $(programs) programs"
TENON_CACHE_BYTES=1000 compiled "no room" "$work/net.onnx"
"$tenon" run @digits-train:8 >/dev/null 2>&1
sleep 1
[ "$(programs)" = 0 ] || fail "kept where there is no room, or of a builtin model"
[ "$(find "$work/cache" -name 'tenon-*' | wc -l)" = 0 ] || fail "unfinished files"
exit $failed
