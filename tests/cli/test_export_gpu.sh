#!/bin/bash
# `tenon export --target=opencl` and `--target=cuda`: networks and a training step with their host part compile without a warning,
# and give the numbers of `tenon run`, also after the states were saved and loaded. OpenCL runs here where there is a device; the
# programs for CUDA are linked by nvcc alone and left in BUILD_DIR/export_gpu, where scripts/device-check runs them on a GPU. A short
# campaign: a fifth of the programs, in turns.
#
# Labels: slow
set -u
. "$SOURCE_DIR/tests/support/campaign.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
tenon=$BUILD_DIR/tenon failures=0 runs=0 linked=0 for_opencl=0 for_cuda=0
export TENON_CACHE_DIR=$dir/cache
cd "$dir" || exit 1
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
refused() { # refused TEXT ARGUMENTS...
    local text=$1
    shift
    "$tenon" export "$@" -o refused.c >/dev/null 2>err && fail "export $*: not refused"
    grep -q -- "$text" err || fail "export $*: '$text' is not in: $(cat err)"
    [ ! -e refused.c ] || fail "export $*: left a file"
}
refused 'there is no sm_12' @mlp:4x8 --target=cuda --cpu=sm_12
refused 'for any device' @mlp:4x8 --target=opencl --cpu=avx2
refused 'there is no sm_80' @mlp:4x8 --cpu=sm_80
refused 'calls a library' @mlp:4x8 --target=cuda --freestanding
refused 'the device runs all' @mlp:4x8 --target=opencl --threads=2
refused 'changes none of its states' @mlp:4x8 --target=opencl --train
# An export needs no memory for the program's values: here 4 GB, of which it has one (the sanitizers need more for themselves).
echo 'graph @big(x bf16[65536,64], w bf16[64,32768]) {
  %1 = dot x, w contract=[1]x[0] bf16[65536,32768]
  return %1 as "y"
}' >big.tn
if (ulimit -v 1000000; "$tenon" ops >/dev/null 2>&1); then
    for target in "cuda --cpu=sm_90" cuda opencl c; do
        # shellcheck disable=SC2086
        (ulimit -v 1000000; "$tenon" export big.tn --target=$target -o big.c --quiet 2>err) || fail "export of 4 GB --target=$target: $(cat err)"
    done
fi

cat >device.h <<'C'
#include <stdio.h>
#include <string.h>
#ifdef __CUDACC__
#define OPEN void *memory; if (cudaMalloc(&memory, NET_DEVICE_BYTES)) return puts("no device"), 77
#define INIT(weights, bytes) net_init(&ctx, memory, NET_DEVICE_BYTES, 0, weights, bytes)
#else
#define OPEN                                                                                                                   \
    cl_platform_id platform; cl_device_id device;                                                                              \
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) return 77;     \
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);                                                  \
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, NULL);                                                   \
    cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, NET_DEVICE_BYTES, NULL, NULL)
#define INIT(weights, bytes) net_init(&ctx, context, device, queue, memory, NET_DEVICE_BYTES, weights, bytes)
#endif
static int near(const float *got, const float *want, int n) {
    for (int i = 0; i < n; i++) {
        const float d = got[i] - want[i], most = 2e-5f * (1 + (want[i] < 0 ? -want[i] : want[i]));
        if (!(d <= most && -d <= most)) return printf("[%d]: got %.9g, expected %.9g\n", i, (double)got[i], (double)want[i]), 0;
    }
    return 1;
}
static unsigned char kept[1 << 22];
static size_t put_at, get_at;
static int take(void *ud, const void *data, size_t n) {
    (void)ud;
    if (put_at + n > sizeof kept) return 1;
    memcpy(kept + put_at, data, n);
    put_at += n;
    return 0;
}
static int give(void *ud, void *data, size_t n) {
    (void)ud;
    memcpy(data, kept + get_at, n);
    get_at += n;
    return 0;
}
C
cat >infer.c <<'C'
#include "net.h"
#include "device.h"
#include "data.h"
int main(void) {
    struct net_ctx ctx;
    OPEN;
    (void)take, (void)give;
    if (INIT(weights, NET_WEIGHTS_BYTES)) return puts("net_init"), 1;
    for (int i = 0; i < 2; i++) {
        memset(y, 0, sizeof y);
        if (net_run(&ctx, x, y)) return puts("net_run"), 1;
        if (!near(y, want, sizeof y / sizeof *y)) return 1;
    }
    return 0;
}
C
cat >learn.c <<'C'
#include "net.h"
#include "device.h"
#include "data.h"
int main(void) {
    struct net_ctx ctx;
    struct net_io io;
    struct net_ring ring;
    static float loss[6];
    OPEN;
    if (INIT(weights, NET_WEIGHTS_BYTES)) return puts("net_init"), 1;
    io.in_x = x, io.in_t = t, io.out_loss = loss;
    ring.in_x = ring.in_t = 0, ring.out_loss = 6;
    if (net_run_n(&ctx, 5, &io, &ring)) return puts("net_run_n"), 1;
    if (net_save(&ctx, take, NULL)) return puts("net_save"), 1;
    if (INIT(weights, NET_WEIGHTS_BYTES)) return puts("net_init"), 1;
    if (net_load(&ctx, give, NULL)) return puts("net_load"), 1;
    if (put_at != get_at) return puts("net_load has read another number of bytes"), 1;
    if (net_run(&ctx, x, t, &loss[5])) return puts("net_run"), 1;
    kept[0] ^= 1, get_at = 0;
    if (net_load(&ctx, give, NULL) != NET_WRONG_STATE) return puts("net_load took a wrong state"), 1;
    return !near(loss, want, 6);
}
C
cat >sizes.c <<'C'
#include "net.h"
#include "device.h"
#include "data.h"
int main(void) { /* a call for each pair of sizes, two steps of a loop, and sizes that are refused */
    struct net_ctx ctx;
    struct net_io two;
    struct net_ring ring;
    const float *at = want;
    OPEN;
    if (INIT(weights, NET_WEIGHTS_BYTES)) return puts("net_init"), 1;
    if (net_run(&ctx, 7, 2, x, y) != NET_WRONG_SIZE || net_run(&ctx, 2, 3, x, y) != NET_WRONG_SIZE) return puts("a wrong size"), 1;
    for (int s = 0; s < 4; s++) {
        const int n = sizes[s][0] * sizes[s][1], m = n * WIDTH;
        for (int i = 0; i < 720; i++) x[i] = i % (n * 5) * 0.01f;
        for (int i = 0; i < 2880; i++) y[i] = -7;
        if (s == 3) {
            two.dims[0] = sizes[s][0], two.dims[1] = sizes[s][1], two.in_x = x, two.out_y = y;
            ring.in_x = ring.out_y = 2;
            two.dims[1]++;
            if (net_run_n(&ctx, 2, &two, &ring) != NET_WRONG_SIZE) return puts("a wrong size of net_run_n"), 1;
            two.dims[1]--;
            if (net_run_n(&ctx, 2, &two, &ring)) return puts("net_run_n"), 1;
            if (!near(y + m, at, m)) return 1;
        } else if (net_run(&ctx, sizes[s][0], sizes[s][1], x, y)) {
            return puts("net_run"), 1;
        }
        if (!near(y, at, m)) return 1;
        for (int i = s == 3 ? 2 * m : m; i < 2880; i++)
            if (y[i] > -7 || y[i] < -7) return puts("written behind the end"), 1;
        at += m;
    }
    (void)take, (void)give, (void)kept, (void)put_at, (void)get_at;
    return 0;
}
C
numbers() { # numbers MODEL...: of the outputs of tenon run
    "$tenon" run "$@" --json --quiet | python3 -c 'import json,sys
def flat(x): return [v for e in x for v in flat(e)] if isinstance(x, list) else [x]
print(" ".join(repr(float(v)) for v in flat(list(json.load(sys.stdin)["outputs"].values())[0]["data"])))'
}
data() { # data SHAPE LABELS: x.npy, t.npy and their C text in data.h
    python3 - "$1" "$2" <<'P'
import random, struct, sys
shape = [int(n) for n in sys.argv[1].split("x")]
labels, n, r = int(sys.argv[2]), 1, random.Random(sys.argv[1])
for d in shape: n *= d
def save(name, dtype, shape, values, code):
    head = "{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }" % (dtype, ", ".join(map(str, shape)))
    head += " " * (64 - (len(head) + 11) % 64) + "\n"
    open(name, "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%d%s" % (n if code == "f" else labels, code), *values))
x = [struct.unpack("f", struct.pack("f", r.uniform(-1, 1)))[0] for _ in range(n)]
t = [r.randrange(10) for _ in range(labels)]
save("x.npy", "<f4", shape, x, "f")
if t: save("t.npy", "<i4", [labels], t, "i")
out = open("data.h", "w")
out.write("static float x[] = { %s };\n" % ", ".join("%rf" % v for v in x))
if t: out.write("static int32_t t[] = { %s };\n" % ", ".join(map(str, t)))
P
}
has() { echo 'int main(void) { return 0; }' >probe.c && "$@" probe.c -o probe >/dev/null 2>&1; }
has_opencl=0 has_nvcc=0
echo '#include <CL/cl.h>' >CL.h
has cc -include CL.h -DCL_TARGET_OPENCL_VERSION=120 -lOpenCL && has_opencl=1
command -v nvcc >/dev/null && has_nvcc=1
[ $has_nvcc = 1 ] && { rm -rf "$BUILD_DIR/export_gpu"; mkdir -p "$BUILD_DIR/export_gpu"; }

check() { # check MODEL MAIN OPTIONS...: with data.h
    local model=$1 main=$2 weights=0 c rc name
    shift 2
    case "$*" in *weights*) weights=1 ;; esac
    if [ $has_opencl = 1 ]; then
        "$tenon" export "$model" -o net.c --name net --target opencl --quiet "$@" || { fail "export $model $*"; return; }
        add_weights $weights
        for c in "$CC -std=gnu99" clang; do
            command -v "${c%% *}" >/dev/null && campaign_has $((for_opencl++)) 5 || continue
            $c -O1 -Wall -Wextra -Wconversion -pedantic -Werror -c net.c -o net.o || { fail "$c: $model $*"; continue; }
            cc -O1 -w -include infer.h "$main.c" net.o -lOpenCL -o prog || { fail "$model: the host"; continue; }
            ./prog >got
            rc=$?
            [ $rc = 77 ] && { echo "no OpenCL device: $model is compiled only"; continue; }
            [ $rc = 0 ] || fail "opencl: $model $*: $(cat got)"
            runs=$((runs + 1))
        done
    fi
    [ $has_nvcc = 1 ] || return
    for c in sm_80 sm_90; do
        campaign_has $((for_cuda++)) 5 || continue
        "$tenon" export "$model" -o net.cu --name net --target cuda --cpu $c --quiet "$@" || { fail "export $model $* for $c"; return; }
        add_weights $weights
        cp "$main.c" main.cu
        name=${model//[^a-z0-9]/_}
        nvcc -Werror all-warnings -arch=${c/90/90a} -c net.cu -o net.o && nvcc -arch=${c/90/90a} -include infer.h main.cu net.o -o "$BUILD_DIR/export_gpu/${name#_}_$c" || fail "nvcc: $model $* for $c"
        linked=$((linked + 1))
    done
}
add_weights() { # the bytes of the file, if there is one, in the host's text
    {
        echo '#include <stdint.h>'
        if [ "$1" = 1 ]; then
            echo 'static const uint64_t weights[] = {'
            od -An -v -t x8 -w8 net.bin | sed 's/ *\(.*\)/0x\1,/'
            echo '};'
        else
            echo 'static const uint64_t *const weights = 0;'
        fi
    } >infer.h
}
infer() { # infer MODEL SHAPE OPTIONS...
    local model=$1 shape=$2 want
    shift 2
    data "$shape" 0
    want=$(numbers "$model" --input x=@x.npy)
    echo "static const float want[] = { ${want// /f, }f }; static float y[$(wc -w <<<"$want")];" >>data.h
    check "$model" infer "$@"
}
infer @mlp:5x13x5 5x13
infer @matmul:70x65x66 70x66 --weights net.bin
infer @cnn:2 2x8x8x1 --weights net.bin
[ -n "${SANITIZE:-}" ] || infer @layernorm:9x2049 9x2049
data 4x8x8x1 4
want=
for n in 1 2 3 4 5 6; do want="$want $(numbers @digits-train:4 --input x=@x.npy --input t=@t.npy --mode loop --steps $n)f,"; done
echo "static const float want[] = {$want };" >>data.h
check @digits-train:4 learn --train
# Sizes that a call gives: one text for all.
cp "$SOURCE_DIR"/tests/cli/export/*.tn .
sed 's/length=m/length=m reverse=1/' turns.tn >back.tn
for model in sizes turns back; do # with a state, which --train asks for
    sed -i 's/(x f32/(state turn f32[] = 0, x f32/; s/^  \(return.*\)/  %t = add turn, 1.0\n  \1, %t -> turn/' $model.tn
    want= sizes= width=5
    [ $model = sizes ] && width=20
    for size in "3 8" "6 12" "1 2" "3 6"; do
        read -r n m <<<"$size"
        python3 - "$n" "$m" <<'P'
import struct, sys
n, m = int(sys.argv[1]), int(sys.argv[2])
head = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d, 5), }" % (n, m)
head += " " * (64 - (len(head) + 11) % 64) + "\n"
open("x.npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%df" % (n * m * 5), *[i * 0.01 for i in range(n * m * 5)]))
P
        want="$want $(numbers $model.tn --input x=@x.npy)" sizes="$sizes { $n, $m },"
    done
    want=$(echo $want)
    echo "enum { WIDTH = $width }; static const float want[] = { ${want// /f, }f }; static const int sizes[][2] = {$sizes }; static float x[720], y[2880];" >data.h
    check $model.tn sizes --train
done

# Loops and branches: the host reads what decides.
cat >control.tn <<'EOF'
graph @control(x f32[3,8]) {
  region @more(%m i64[], %u f32[3,8]) {
    %t = reduce_max %u axes=[0,1] f32[1,1]
    %o = reshape %t f32[]
    %w = gt %o, 0.01
    return %w
  }
  region @big(%p f32[3,8]) {
    %a = mul %p, 0.25
    return %a
  }
  region @small(%q f32[3,8]) {
    %b = sub %q, 0.001
    return %b
  }
  region @body(%i i64[], %v f32[3,8]) {
    %s = reduce_max %v axes=[0,1] f32[1,1]
    %r = reshape %s f32[]
    %c = gt %r, 0.1
    %n = if %c, %v then=@big else=@small f32[3,8]
    %j = add %i, 1
    return %j, %n
  }
  region @sums(%d f32[3,8], %z f32[8]) {
    %e = reshape %z f32[1,8]
    %f = expand %e f32[3,8]
    %g = reduce_max %d axes=[0] f32[1,8]
    %h = expand %g f32[3,8]
    %k = mul %h, 0.5
    %l = add %k, %f
    return %l
  }
  %0 = const 0 i64[]
  %1 = while %0, x cond=@more body=@body i64[]
  %2 = proj %1 index=1 f32[3,8]
  %3 = scan %1, %2, x body=@sums carry=1 steps=1 length=3 f32[3,8]
  return %3 as "y"
}
EOF
infer control.tn 3x8
if [ $has_nvcc = 1 ]; then # the host's half of nvcc reads what matrix units are written in, too
    echo 'graph @m(a bf16[256,128], b bf16[128,256]) {
      %1 = dot a, b contract=[1]x[0] bf16[256,256]
      return %1 as "y"
    }' >product.tn
    "$tenon" export product.tn -o net.cu --name net --target cuda --cpu sm_90 --quiet || fail "export of a product of bf16"
    grep -q multiply_bf16 net.cu || fail "matrix units do not multiply bf16"
    nvcc -Werror all-warnings -arch=sm_90a -c net.cu -o net.o || fail "nvcc: a product of bf16"
fi
[ $has_opencl$has_nvcc = 00 ] && [ $failures = 0 ] && { echo "skipped: no headers of OpenCL (opencl-headers, ocl-icd-opencl-dev) and no nvcc"; exit 77; }
echo "count: $runs exported programs run by OpenCL, $linked linked by nvcc"
exit $((failures > 0))
