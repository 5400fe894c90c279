#!/bin/bash
# What goes wrong with a GPU's driver and compiler, with fakes of them that tests/drive/faults has: every fault is a status and a
# message that says what to do, and the CPU goes on. Also what a driver without loops in graphs gets instead of them.
set -u
cd "$BUILD_DIR" || exit 1
[ -z "$SANITIZE" ] || { echo "skipped: the fakes are not built for sanitizers"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset TENON_DEVICE FAKE_CUDA FAKE_NVRTC FAKE_CUDA_LOG FAKE_OPENCL
export TENON_CACHE_DIR=$dir/cache # code of the fakes must not get into the user's
fail() { echo "FAILED: $*"; exit 1; }
build() { # folder, options: a driver
    mkdir -p "$dir/$1"
    "$CC" -shared -fPIC -I"$SOURCE_DIR/src" "${@:2}" -o "$dir/$1/libcuda.so.1" "$SOURCE_DIR/tests/drive/faults/fake_cuda.c" || fail "fake driver"
}
build good
build old -DOLD
build plain -DNO_LOOPS
mkdir -p "$dir/compiler" "$dir/broken"
"$CC" -shared -fPIC -o "$dir/compiler/libnvrtc.so.13" "$SOURCE_DIR/tests/drive/faults/fake_nvrtc.c" || fail "fake compiler"
echo 'int nothing;' | "$CC" -shared -fPIC -x c -o "$dir/broken/libnvrtc.so.13" - || fail "broken compiler"

with() { # folders, words of FAKE_CUDA, command
    local path=
    for f in $1; do path=$path:$dir/$f; done
    LD_LIBRARY_PATH=${path#:}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} FAKE_CUDA=$2 "${@:3}"
}
refused() { # pattern, then as `with`: the program must fail with such a message
    with "${@:2}" >"$dir/out" 2>&1 && fail "no error: ${*:2}"
    grep -qE "$1" "$dir/out" || fail "no '$1' for ${*:2}: $(cat "$dir/out")"
}
run="./tenon run @mlp:8x16 --device cuda --quiet"

with "good" none ./tenon devices | grep -q '^cuda.*finds no GPU' || fail "devices without a GPU"
with "good" "" ./tenon devices | grep -q '^cuda.*Fake GPU, sm_90' || fail "devices with the fake"
refused 'DEVICE.*no cuGraphLaunch; install version' old "" $run
refused 'DEVICE.*finds no GPU' good none $run
refused 'DEVICE.*unsupported driver version' good mismatch $run
with "good" mismatch ./tenon run @mlp:8x16 --quiet >/dev/null || fail "the CPU beside a broken driver"

# Without a compiler: what the cache has runs, the rest says what to install.
with "good compiler" "" $run >/dev/null || fail "a run with the fakes"
with "good broken" "" $run >/dev/null || fail "a run without a compiler, from the cache"
refused 'DEVICE.*NVRTC.*CUDA 12' "good broken" "" $run --no-cache
refused 'planted error' "good compiler" "" env FAKE_NVRTC=refuse $run --no-cache

# Memory: the whole plan is asked for first.
refused 'NOMEM.*memory of [0-9]+ bytes is needed .temporaries.*of which 1000 are free' "good compiler" full $run
refused 'DEVICE.*unspecified launch failure' "good compiler" lost $run

# The model sends large work to the GPU, small work to the CPU.
with "good compiler" "" ./tenon explain @mlp:8x1024 --device auto | grep -q '^device: cuda; cpu: about' || fail "auto, large"
with "good compiler" "" ./tenon explain @mlp:8x8 --device auto | grep -q '^device: cpu; ' || fail "auto, small"

# 100 steps: one loop of six times 16 steps and four single ones; seven graphs more without loops.
launches() { # folders: how many graphs of 100 steps
    rm -f "$dir/log"
    with "$1 compiler" "" env FAKE_CUDA_LOG="$dir/log" ./tenon run @mlp:8x256 --device cuda --mode loop --steps 100 --fusion 1 --quiet >/dev/null ||
        fail "100 steps"
    grep -c "$2" "$dir/log"
}
[ "$(launches good loop)" = 1 ] && [ "$(launches good graph)" = 5 ] || fail "a loop: $(sort "$dir/log" | uniq -c)"
[ "$(launches plain loop)" = 0 ] && [ "$(launches plain graph)" = 10 ] || fail "no loop: $(sort "$dir/log" | uniq -c)"

# A scan of known length is one graph of all its launches; a while loop goes by what the host reads, here false at once.
printf '%s\n' 'graph @s(x f32[9,4], h f32[4]) {' '  region @b(%c f32[4], %v f32[4]) {' '    %1 = add %c, %v' '    return %1, %1' '  }' \
    '  %n = const 9 i64[]' '  %s = scan %n, h, x body=@b carry=1 steps=1 length=9 f32[4]' '  return %s as "y"' '}' >"$dir/scan.tn"
printf '%s\n' 'graph @w(n i64[]) {' '  region @c(%a i64[]) {' '    %t = lt %a, 10' '    return %t' '  }' '  region @b(%b i64[]) {' \
    '    %m = add %b, 1' '    return %m' '  }' '  %1 = while n cond=@c body=@b i64[]' '  return %1 as "y"' '}' >"$dir/while.tn"
for flow in scan while; do
    rm -f "$dir/log"
    with "good compiler" "" env FAKE_CUDA_LOG="$dir/log" ./tenon run "$dir/$flow.tn" --device cuda --quiet >/dev/null || fail "$flow"
    echo "$flow $(grep -c graph "$dir/log") $(grep -c kernel "$dir/log")"
done >"$dir/out"
[ "$(cat "$dir/out")" = "$(printf 'scan 1 0\nwhile 0 2')" ] || fail "launches of control flow: $(cat "$dir/out")"

# Three steps with 8 MB each go up in two pieces a step, a submit behind each; a trace has all of it.
with "good compiler" "" ./tenon profile @relu:1024x2048 --device cuda --mode loop --seconds 0 --steps 3 --trace "$dir/trace.json" >/dev/null ||
    fail "a trace"
spans() { grep -cE "\"name\": \"$1\".*\"dur\"" "$dir/trace.json"; }
[ "$(spans fill) $(spans upload) $(spans run) $(spans download)" = "6 6 3 2" ] || fail "spans: $(cat "$dir/trace.json")"

# Memory and a stream of the caller's (the third that is made): 40 runs wait for it and it for them, and bring nothing up.
rm -f "$dir/log"
with "good compiler" "" env FAKE_CUDA_LOG="$dir/log" tests/drive_test_bind_device >"$dir/out" 2>&1 || fail "memory of the caller: $(cat "$dir/out")"
grep -q '^fake driver' "$dir/out" || fail "no runs on the fake driver: $(cat "$dir/out")"
[ "$(grep -cx 'wait 2' "$dir/log")" = 40 ] && [ "$(grep -cx 'upload 2' "$dir/log")" = 40 ] || fail "a stream of the caller: $(sort "$dir/log" | uniq -c)"
[ "$(grep -cx 'wait 0' "$dir/log")" -ge 40 ] && [ "$(grep -cx 'upload 0' "$dir/log")" -le 4 ] || fail "the stream of runs: $(sort "$dir/log" | uniq -c)"

# The same of OpenCL: the right driver is found in the same way, and the CPU goes on beside a broken one.
for d in opencl opencl_old; do
    mkdir -p "$dir/$d"
    old=$([ $d = opencl ] || echo -DOLD)
    "$CC" -shared -fPIC $old -I"$SOURCE_DIR/src" -o "$dir/$d/libOpenCL.so.1" "$SOURCE_DIR/tests/drive/faults/fake_opencl.c" || fail "fake OpenCL"
done
run="./tenon run @mlp:8x16 --device opencl --quiet"
fails() { refused "$1" opencl "" env FAKE_OPENCL="$2" "${@:3}"; } # pattern, fault, command
with opencl "" env FAKE_OPENCL=none ./tenon devices | grep -q '^opencl.*0 drivers are installed' || fail "devices without a platform"
with opencl "" ./tenon devices | grep -q '^opencl.*Fake GPU, OpenCL 1.2' || fail "devices with the fake"
with opencl "" $run >/dev/null || fail "a run with the fake"
with opencl "" $run >/dev/null || fail "a run from the cache"
refused 'DEVICE.*no clFinish; version 1.2 is needed' opencl_old "" $run
fails 'DEVICE.*0 drivers are installed and none has a device; install' none $run
fails 'DEVICE.*1 drivers are installed and none has a device; install' bare $run
fails 'NOMEM.*memory of [0-9]+ bytes is needed .temporaries' small $run
fails 'NOMEM.*no buffer of [0-9]+ bytes .error -4.; the device has' full $run
fails 'BUILD.*refused the generated program' refuse $run --no-cache
fails 'planted error' refuse $run --no-cache
fails 'DEVICE.*a launch failed with error -36' lost $run
fails 'DEVICE.*a run failed with error -9999' gone $run
with opencl "" env FAKE_OPENCL=lost ./tenon run @mlp:8x16 --quiet >/dev/null || fail "the CPU beside a broken driver"
echo "faults: all right"
