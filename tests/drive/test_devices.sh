#!/bin/bash
# The conformance suite on the devices that are not the CPU: what the tests of the CPU check, with TENON_DEVICE. Here OpenCL is a
# simulator (Oclgrind, which also finds data races and wrong addresses) or compiled for the processor (PoCL, which takes 0.1 s a
# program and as much a kernel, so graphs are short, share programs, and the compiler does not optimise but for one). Elsewhere it
# is what is installed. Without OpenCL: skipped.
# Labels: slow
# TENON_DEVICE_SEEDS: random graphs by the simulator in six configurations each (default 8); 5 times as many short ones in one
# each, and 15 times as many by OpenCL. A short campaign: 1, a quarter of the files, a seventh of the works and a third of the
# suites beside random graphs, in turns.
set -u
. "$SOURCE_DIR/tests/support/campaign.sh"
cd "$BUILD_DIR" || exit 1
export TENON_FUZZ_NO_REDUCE=1 POCL_CACHE_DIR=$BUILD_DIR/pocl POCL_EXTRA_BUILD_FLAGS=-cl-opt-disable
export TENON_CACHE_DIR=$BUILD_DIR/devices.cache # which does not know of flags
rm -rf "$TENON_CACHE_DIR"
fail() { echo "FAILED: $*"; exit 1; }

# No driver: the device says so, and the CPU goes on.
missing=$(OCL_ICD_VENDORS=$BUILD_DIR/no-opencl ./tenon devices) || fail "tenon devices without OpenCL"
grep -q '^opencl *not here: .*install' <<<"$missing" || fail "no word about a missing OpenCL: $missing"
OCL_ICD_VENDORS=$BUILD_DIR/no-opencl ./tenon run @softmax:2x5 --device opencl >/dev/null 2>missing.log && fail "ran on a missing device"
grep -q 'install' missing.log || fail "no reason: $(cat missing.log)"
OCL_ICD_VENDORS=$BUILD_DIR/no-opencl ./tenon run @softmax:2x5 --quiet >/dev/null || fail "the CPU without OpenCL"
rm -f missing.log

# The null device counts the same launches.
./tenon run @softmax:2x5 --device null --quiet >/dev/null || fail "device null"

if ./tenon devices | grep -q '^opencl *not here'; then
    echo "skipped: $(./tenon devices | grep '^opencl')"
    exit 77
fi
seeds=${TENON_DEVICE_SEEDS:-$(campaign 8 1)}

suite() { # name, graphs, first seed, graphs to a program: random graphs in all modes, or in one each where they share programs
    TENON_DEVICE=opencl TENON_FUZZ_SEEDS=$2 TENON_FUZZ_FIRST=$3 ${4:+env TENON_FUZZ_JOIN="$4"} tests/drive_test_modes >"devices.$1.log" 2>&1 ||
        fail "random graphs on $1: $(tail -30 "devices.$1.log")"
    grep '^count:' "devices.$1.log" | sed "s/compiled to machine code/on $1/"
    ! grep -iE 'data race|invalid (read|write)|divergence' "devices.$1.log" || fail "races or wrong addresses on $1"
}
control() { # name, graphs: if, while and scan
    TENON_DEVICE=opencl TENON_FUZZ_SEEDS=$2 tests/drive_test_control >"devices.$1.log" 2>&1 || fail "control flow on $1: $(tail -30 "devices.$1.log")"
    grep '^count:' "devices.$1.log" | sed "s/$/, on $1/"
    ! grep -iE 'data race|invalid (read|write)|divergence' "devices.$1.log" || fail "races or wrong addresses on $1"
}
dynamic() { # name, tests: sizes that a run gives
    TENON_DEVICE=opencl tests/drive_test_dynamic ${2:+"$2"} >"devices.$1.log" 2>&1 || fail "sizes of a run on $1: $(tail -30 "devices.$1.log")"
    ! grep -iE 'data race|invalid (read|write)|divergence' "devices.$1.log" || fail "races or wrong addresses on $1"
}
verify() { # name, arguments
    ./tenon verify "${@:2}" --device opencl --quiet >"devices.$1.log" 2>&1 || fail "verify ${*:2} on $1: $(tail -20 "devices.$1.log")"
}

icd=/usr/lib/oclgrind/liboclgrind-rt-icd.so
if [ -e "$icd" ]; then
    (
        echo "$icd" >oclgrind.icd
        export OCL_ICD_VENDORS=$BUILD_DIR/oclgrind.icd OCLGRIND_DATA_RACES=1 OCLGRIND_BUILD_OPTIONS=-cl-opt-disable OCLGRIND_MAX_ERRORS=1000
        suite oclgrind "$seeds" "$(campaign_first 7 8)"
        suite oclgrind $((5 * seeds)) "$(campaign_first 1000 35)" 4
        i=0
        for f in "$SOURCE_DIR"/tests/sched/*.tn; do
            [[ $f != */few_rows_no_cache.tn ]] || continue # 4 s here; PoCL runs it below
            campaign_has $((i++)) 4 || continue
            ./tenon run "$f" --device opencl --no-cache --quiet >>devices.oclgrind.log 2>&1 || fail "run $f: $(tail -5 devices.oclgrind.log)"
        done
        ! grep -iE 'data race|invalid (read|write)|divergence' devices.oclgrind.log || fail "races or wrong addresses"
        if campaign_has 0 3; then
            TENON_DEVICE=opencl tests/drive_test_ops 'test_moves' >devices.ops.log 2>&1 || fail "ops: $(tail -20 devices.ops.log)"
            ! grep -iE 'data race|invalid (read|write)|divergence' devices.ops.log || fail "races or wrong addresses"
            grep '^count:' devices.ops.log
        fi
        if campaign_has 1 3; then control oclgrind "$seeds"; fi
        if campaign_has 2 3; then dynamic oclgrind test_no_allocation; fi
    ) || exit 1
fi
(
    unset POCL_EXTRA_BUILD_FLAGS # by the text and these flags PoCL keeps what it compiled
    suite opencl 1 9
) || exit 1
suite opencl $((15 * seeds)) "$(campaign_first 2000 105)" 8
if campaign_has 2 3; then verify rows "$SOURCE_DIR/tests/sched/few_rows_no_cache.tn" --modes compiled; fi
if campaign_has 0 3; then control opencl "$seeds"; fi
if campaign_has 1 3; then dynamic opencl; fi
./tenon explain @softmax:2x5 --device opencl | grep -q 'reads .*threads touch .* sectors' || fail "explain says nothing of memory"
./tenon explain @softmax:2x5 --device opencl --json | grep -q '"accesses":\[{"value"' || fail "explain --json says nothing of memory"
# updates of two parameters are one launch, whose kernels have no scalar form together; its text, and its values
printf '%s\n' 'graph @u(g f32[1000], h f32[70], state v f32[1000], state w f32[70]) {' '%1 = sub v, g f32[1000]' '%2 = sub w, h f32[70]' \
    'return %1 -> v, %2 -> w' '}' >devices.beside.tn
for what in kernels scalar; do
    ./tenon emit devices.beside.tn --device opencl --target=$what >devices.beside.log 2>&1 || fail "emit $what: $(tail -5 devices.beside.log)"
    grep -q 'grid-threads of [0-9]* from [1-9]' devices.beside.log || fail "$what: not one launch: $(cat devices.beside.log)"
done
verify beside devices.beside.tn --modes compiled
./tenon bench modes --device opencl --depths 2 --sizes 4 --modes graph --cache on --seconds 0.01 --json --quiet >devices.modes.log 2>&1 &&
    grep -q '"work": "crossover"' devices.modes.log || fail "bench modes: $(tail -5 devices.modes.log)"
i=0
for work in matmul relu softmax fused sum transpose histogram; do
    campaign_has $((i++)) 7 || continue
    ./tenon bench ladder $work --device opencl --sizes 37 --seconds 0.002 --json --quiet >devices.ladder.log 2>&1 ||
        fail "ladder $work: $(tail -5 devices.ladder.log)"
    grep -q '"rung": ".*generated"' devices.ladder.log || fail "ladder $work has no generated rung"
done
# sums of each thread, combined in loops of barriers: PoCL took more than minutes for them when they were unrolled
if campaign_has 2 3; then
    timeout 60 ./tenon bench ladder histogram --device opencl --sizes 37 --bins 300 --seconds 0.002 --json --quiet >devices.ladder.log 2>&1 ||
        fail "histogram of 300: $(tail -5 devices.ladder.log)"
fi
./tenon bench ladder relu --device opencl --sizes 37 --seconds 0.002 --plant-error --quiet >devices.ladder.log 2>&1 && fail "a planted error"
verify opencl @mlp:4x24 --modes compiled,loop
echo "devices: all right"
