#!/bin/bash
# The program as scripts meet it: help, exit codes, what goes to stdout and what to stderr, JSON, NO_COLOR, stdin, files.
# Labels: slow
set -u
tenon=$BUILD_DIR/tenon
[ -x "$tenon" ] || { echo "no program at $tenon"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TENON_CACHE_DIR=$dir/cache
bad=0 checks=0
fail() { echo "FAILED: $*"; bad=1; }

# expect CODE ARGS...: runs the program with stdout in $dir/out and stderr in $dir/err
expect() {
    local want=$1
    shift
    "$tenon" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    local got=$?
    checks=$((checks + 1))
    [ $got = "$want" ] || { fail "tenon $*: exit code $got, expected $want"; cat "$dir/err"; }
}
is_json() {
    [ -n "$have_python" ] || return 0
    python3 -m json.tool <"$dir/out" >/dev/null || fail "$*: not JSON"
    python3 -c 'import json, sys; sys.exit(json.load(open(sys.argv[1])).get("schema") != 1)' "$dir/out" || fail "$*: schema is not 1"
}
out_has() { grep -q -- "$1" "$dir/out" || { fail "no '$1' on stdout of $2"; head -5 "$dir/out"; }; }
err_has() { grep -q -- "$1" "$dir/err" || { fail "no '$1' on stderr of $2"; head -5 "$dir/err"; }; }
have_python=$(command -v python3 || true)
commands="run opt emit explain verify bench ops opcodes cache devices tune profile onnx-test tokenizer pack train-lm generate quantize"

# Help: every subcommand, on stdout, with examples.
expect 0 --help
for k in $commands; do
    out_has "  $k " --help
done
for k in $commands; do
    expect 0 "$k" --help
    out_has "usage: tenon $k" "$k --help"
    out_has "examples:" "$k --help"
    [ -s "$dir/err" ] && fail "$k --help writes to stderr"
    expect 0 help "$k"
done
expect 0 help models
out_has "@mlp" "help models"
expect 0 --version
out_has "^tenon [0-9]" --version

# What is no name of anything is wrong usage, whatever it should name; what a command cannot do names the place.
expect 2 run @softmax --device abacus
err_has "there is no device abacus (cpu, cuda, opencl, null, auto)" "an unknown device"
expect 2 bench modes --device abacus
expect 2 opt @softmax --passes fold,abacus
err_has "there is no pass abacus" "an unknown pass"
expect 0 opt @softmax --passes fold,cse
expect 2 bench rows --cases abacus
err_has "'abacus' in its name" "no such case"
err_has "layer norm" "no such case"
expect 2 bench modes --cases abacus
err_has "bench modes has no option --cases: all have it but modes ladder exp ulp machine models" "an option of other benchmarks"
expect 2 bench conv --dtype bf16
err_has "bench conv has no option --dtype: it is of bench gemm" "an option of other benchmarks"
expect 2 bench model --cases abacus --samples 0 --threads 1
err_has "'abacus' in its name" "no such case of a model"
expect 2 run @mlp:
err_has "expected sizes such as @mlp:8x64x64" "a model without the sizes it announces"
expect 2 run @mlp:3x
err_has "expected sizes such as @mlp:8x64x64" "a model with half of its sizes"
cat >"$dir/rows.tn" <<'TN'
graph @rows(x i32[16], n i32[16], table f32[300,4]) {
  %1 = reshape x i32[4,4]
  %2 = gather table, %1 axis=0 f32[4,4,4]
  return %2, n
}
TN
expect 0 profile "$dir/rows.tn" --seconds 0 --threads 1
err_has "input x i32\[16\] is random, 0..299 " "profile draws over all rows of a table"
err_has "input n i32\[16\] is random (" "profile draws other integers as run does"
expect 2 profile @softmax:2x3 --steps abc
err_has "'abc' is no whole number" "profile --steps"
expect 2 profile @softmax:2x3 --steps 3
err_has "those of --trace" "profile --steps without a trace"
expect 2 cache prune --max-bytes 99999999999999999999
err_has "no size such as 64M" "more bytes than there are"
# Compositions have no rows in the op table: the headers say what there is.
builders="sort argsort top_k unique nonzero cumulative searchsorted one_hot tril triu popcount clz bit_not bitcast floor_div fmod
round_away erfinv lgamma digamma einsum gather_nd scatter_nd scatter take_along put_along segment embedding_bag ragged
ragged_attention quantize dequantize fake_quantize pack_4bit unpack_4bit signal_fft signal_rfft signal_irfft signal_stft signal_mel
nn_conv_transpose nn_unfold nn_fold nn_interpolate nn_grid_sample nn_pixel_shuffle nn_adaptive_avg_pool nn_adaptive_max_pool
nn_roi_align nn_nms linalg_cholesky linalg_solve_triangular linalg_qr linalg_inverse linalg_det linalg_svd linalg_eigh
nn_random_categorical nn_random_exponential nn_random_gamma nn_random_beta nn_random_poisson random_bernoulli
nn_random_truncated_normal nn_random_permutation nn_dropout nn_gyro_dropout nn_spatial_dropout nn_drop_path nn_focal
nn_cosine_embedding nn_cosine_similarity nn_triplet nn_ctc nn_dice nn_cross_entropy_with nn_instance_norm nn_local_response_norm
nn_weight_norm nn_spectral_norm nn_rnn nn_gru nn_lstm if while scan call"
# shellcheck disable=SC2086
expect 0 ops --builders $builders
expect 0 ops --builders
find "$SOURCE_DIR"/tests -name '*.c' -exec cat {} + >"$dir/tests.c"
for k in $builders; do
    grep -qE "\\btn_$k\\b" "$dir/tests.c" || fail "no test calls tn_$k"
done
expect 0 ops --builders tn_quantize --json
is_json ops --builders --json
out_has '"header": "tenon_quant.h"' "ops --builders --json"
expect 1 ops --builders abacus
err_has "no builder has the name abacus" "ops --builders of an unknown name"
expect 1 ops add abacus
err_has "there is no op abacus" "ops of an unknown op"
printf 'graph @g(x u64[3], y u16[2], z f8e4m3[2], w i64[2]) {\n %%1 = add x, 1 u64[3]\n %%2 = mul y, y u16[2]\n %%3 = reshape z f8e4m3[2]\n %%4 = neg w i64[2]\n return %%1 as "a", %%2 as "b", %%3 as "c", %%4 as "d"\n}\n' >"$dir/words.tn"
set -- -i x=3xu64:18446744073709551614,9007199254740992,3 -i y=2xu16:300,2 -i z=2xf8e4m3:0.3,440 -i w=2xi64:9007199254740993,-1
expect 0 run "$dir/words.tn" "$@"
out_has "18446744073709551615, 9007199254740993, 4" "run: words of 64 bits"
out_has "24464, 4" "run: words of 16 bits wrap around"
out_has "0.3125, 448" "run: floats of 8 bits"
out_has "[-]9007199254740993, 1" "run: words of 64 bits with a sign"
expect 0 run "$dir/words.tn" "$@" --json
out_has "18446744073709551615, *9007199254740993" "run --json: words of 64 bits"
printf 'graph @g<n 1..8>(x f32[n,4]) {\n %%1 = neg x f32[n,4]\n return %%1 as "y"\n}\n' >"$dir/dim.tn"
expect 1 opt --verify "$dir/dim.tn"
err_has "input %1 x has a symbolic dim" "opt --verify of a symbolic dim"
expect 0 verify "$dir/dim.tn" --modes immediate,graph,compiled,loop
[ "$(grep -c '^n=[1-8]$' "$dir/out")" = 3 ] && [ "$(grep -c '1 values agree' "$dir/out")" = 12 ] || fail "verify of a dim: $(cat "$dir/out")"
expect 0 verify "$dir/dim.tn" --dim n=5
[ "$(grep -c '^n=' "$dir/out")" = 1 ] && out_has '^n=5$' "verify --dim n=5"
expect 0 verify "$dir/dim.tn" --input x=3x4xf32:1 --json
out_has '"sizes": "n=3"' "verify --input x=3x4"
expect 1 verify "$dir/dim.tn" --dim n=9
err_has "dim n is 9: expected 1 to 8" "verify --dim n=9"
expect 2 verify "$dir/dim.tn" --input x=3x5xf32:1
err_has "3,5. given, the graph wants f32.3,4" "verify --input x=3x5"
printf 'graph @cut<n 1..8, m 1..8>(x f32[n+m]) {\n %%1 = slice x start=[0] step=[1] f32[m]\n %%2 = sum %%1 axes=[0] f32[1]\n return %%2 as "s"\n}\n' >"$dir/cut.tn"
expect 0 verify "$dir/cut.tn"
out_has '^n=1 m=8$' "verify of two dims"
printf 'graph @g(c bool[], x f32[4]) {\n region @r(%%1 f32[4]) {\n %%2 = neg %%1 f32[4]\n return %%2\n }\n region @s(%%3 f32[4]) {\n %%4 = exp %%3 f32[4]\n return %%4\n }\n %%5 = if c, x then=@r else=@s f32[4]\n return %%5 as "y"\n}\n' >"$dir/if.tn"
expect 0 verify "$dir/if.tn"
out_has "^immediate  *1 values agree" "verify of a branch"
out_has "4 values in bodies are checked by the results of their ops" "verify of a branch"
out_has "bit for bit as in immediate" "verify of a branch"
expect 0 verify "$dir/if.tn" --modes compiled,loop --each --json
out_has '"inside_bodies": 4, "bad": 0' "verify --json of a branch"
cat >"$dir/loops.tn" <<'END'
graph @loops(x f32[6,4], w f32[4,4], h f32[4], state s f32[4]) {
  %n = const 6 i64[]
  %z = const 0 i64[]
  region @step(%c f32[4], %xt f32[4], %u f32[4,4]) {
    %1 = dot %c, %u contract=[0]x[0] f32[4]
    %2 = add %1, %xt
    %3 = tanh %2
    return %3, %3
  }
  %s = scan %n, h, x, w body=@step carry=1 steps=1 length=6 f32[4]
  %hs = proj %s index=1 f32[6,4]
  %t = sum %hs axes=[0] f32[1,4]
  region @more(%i i64[], %a f32[1,4]) {
    %5 = lt %i, 5
    return %5
  }
  region @halve(%j i64[], %b f32[1,4]) {
    %6 = add %j, 1
    %7 = mul %b, 0.7
    %8 = exp %7
    return %6, %8
  }
  %w = while %z, %t cond=@more body=@halve i64[]
  %v = proj %w index=1 f32[1,4]
  %r = reshape %v f32[4]
  %q = add %r, s
  return %w as "i", %s as "last", %q -> s
}
END
expect 0 verify "$dir/loops.tn" --modes immediate,graph,compiled,loop
out_has "^loop  *7 values agree" "verify of loops"
expect 0 verify "$dir/loops.tn" --each --fusion 3
printf 'graph @g(x f32[4]) {\n %%1 = abs x f32[4]\n %%2 = add %%1, 1e20 f32[4]\n %%3 = mul %%2, 1e30 f32[4]\n return %%3 as "y"\n}\n' >"$dir/overflow.tn"
expect 0 verify "$dir/overflow.tn"
if grep -q "difference inf\|inf %" "$dir/out"; then fail "verify: overflows that agree are a difference"; fi
printf 'graph @g(a f32[4,3], b f32[4,2]) {\n %%1 = exp a f32[4,3]\n %%2 = exp b f32[4,2]\n %%3 = concat %%1, %%2 axis=1 f32[4,5]\n return %%3 as "y"\n}\n' >"$dir/concat.tn"
for form in "" --json; do # parts of a concat are copies, not an op that nobody wrote
    # shellcheck disable=SC2086
    expect 0 explain "$dir/concat.tn" $form
    grep -q copy_ "$dir/out" || fail "explain $form: no kernel is named after its copy"
    if grep -q stop_gradient "$dir/out"; then fail "explain $form: a part of a concat is stop_gradient"; fi
done
expect 0 explain @softmax --threads 1
out_has ": 1 kernel (1 different), fusion level 3, 1 thread$" "explain of one kernel"
out_has "predicted [0-9.e-]* us, bound by .*; moves [0-9.]* KiB from the first cache, .* from memory$" "explain: the cost model"

# Arrays of whole pages begin at different lines of a page.
cat >"$dir/pages.tn" <<'TN'
graph @pages(state a f32[1024], state b f32[1024], state c f32[2048], x f32[1024]) {
  %1 = add a, b
  %2 = add %1, x
  %3 = neg c
  return %2 as "y", %2 -> a, %1 -> b, %3 -> c
}
TN
expect 0 explain "$dir/pages.tn"
for place in "at 0 .* 4096 *0 .*(a)" "at 4352 .* 256 *4 .*(b)" "at 8704 .* 512 *8 .*(c)"; do
    out_has "$place" "explain: places of states"
done
expect 0 explain "$dir/pages.tn" --json
out_has '"offset":8704,"bytes":8192,"alignment":512' "explain --json: places"

# Why launches stand in their order: by data, and by what is written after it was read.
cat >"$dir/step.tn" <<'TN'
graph @step(x f32[64,64], state w f32[64,64]) {
  %1 = dot x, w f32[64,64]
  %2 = mul %1, 0.5 f32[64,64]
  %3 = dot %2, x f32[64,64]
  %4 = sub w, %3 f32[64,64]
  return %1 as "y", %4 -> w
}
TN
expect 0 emit --target=deps "$dir/step.tn" --threads 1
out_has "^  0 dot[^ ]*$" "emit --target=deps"
out_has "^  1 .* after data 0 (%[0-9]*)" "emit --target=deps"
out_has "control 0 (%2 is read before)" "emit --target=deps"
# The text of a plan is taken back: it prints as it was, and what is wrong with it is said.
"$tenon" emit "$dir/step.tn" --target=plan --threads 2 --quiet >"$dir/step.plan"
expect 0 emit "$dir/step.plan" --target=plan --quiet
cmp -s "$dir/out" "$dir/step.plan" || fail "a plan that was read prints another text"
expect 0 emit --target=deps "$dir/step.plan"
out_has "control 0 (%2 is read before)" "emit --target=deps of a plan"
sed 's/launch k0(in/launch k0(at/' "$dir/step.plan" >"$dir/bad.plan"
expect 1 emit --target=deps "$dir/bad.plan" && err_has "bad.plan:[0-9]*:[0-9]*: expected in, out or inout" "a plan with a mistake"

# Wrong usage: code 2, nothing on stdout.
while read -r line; do
    # shellcheck disable=SC2086
    expect 2 $line
    [ -s "$dir/out" ] && fail "wrong usage '$line' writes to stdout"
    [ -s "$dir/err" ] || fail "wrong usage '$line' says nothing"
done <<'LIST'
nonsense
run
run --bogus @relu:2x2
run @nothing
run @relu:2x2x2
run @relu:axb
run @relu:2x2 more
run @relu:2x2 --mode fast
run @relu:2x2 --fusion 4
run @relu:2x2 --threads x
run @relu:2x2 --input y=f32:1
run @relu:2x2 --input x=2x2xf32:1,2,3
run @relu:2x2 --input x=2x2xf99:1
run @relu:2x2 --input x=3x3xf32:1
run @relu:2x2 --output z
run @relu:2x2 --output x
emit @relu:2x2 --target=pascal
bench
bench nothing
bench modes --sizes 0
bench modes --sizes 4-64*1
bench modes --sizes 4,,8
bench modes --modes naive,fast
bench modes --cache maybe
bench ladder nothing
opcodes nothing
cache
cache burn
tune
tune @relu:2x2 --seconds=never
tune @relu:2x2 --seconds=-1
cache prune --max-bytes=many
help nothing
LIST

# Tuning: a table, what is kept, who uses it, and forgetting it.
expect 0 tune @product:40x54x32 --sweep --dry-run --threads 1 --seconds 0.7 --csv "$dir/sweep.csv"
for word in "as given" "w transposed" "x transposed" "padded to multiples of 64" "unroll_jam i0 [0-9]" model fastest "of peak"; do
    out_has "$word" "tune --sweep"
done
[ "$(wc -l <"$dir/sweep.csv")" -gt 20 ] || fail "tune --csv: hardly a line"
expect 0 tune @conv1d:1x500x1x3x8 --sweep --dry-run --threads 1 --seconds 0.3 --json
is_json "tune --sweep"
out_has '"model": true' "tune --sweep --json"
out_has '"peak_ratio"' "tune --sweep --json"
expect 0 tune @matmul:64x256x128 --seconds 0.3 --threads 1 --progress
out_has "^kernel " tune
out_has "whole run" tune
err_has "tune:" "tune --progress"
if grep -q "kept in" "$dir/err"; then
    expect 0 cache stats
    out_has "tuning  *1 kernels" "cache stats"
    # Which schedule was fastest depends on the machine: another one than the recipe's takes its place.
    expect 0 explain @matmul:64x256x128 --threads 1
    steps=$(sed -n 's/^ *schedule: //p' "$dir/out" | sed 's/unroll_jam i0 [0-9]*/unroll_jam i0 2/')
    sed -i -E "s/^([0-9a-f]{16} [0-9]+ [0-9]+) .*/\1 $steps/" "$TENON_CACHE_DIR/tuning.txt"
    expect 0 explain @matmul:64x256x128 --threads 1
    out_has "measured by tuning" "explain after tune"
    expect 0 explain @matmul:64x256x128 --threads 1 --json
    out_has '"tuned":' "explain --json after tune"
fi
expect 0 cache prune --tuning
out_has "entries of the tuning database removed" "cache prune --tuning"
expect 0 explain @matmul:64x256x128 --threads 1
grep -q "measured by tuning" "$dir/out" && fail "a forgotten choice is used"

# Profiles: a row a kernel, ceilings of this machine, a trace.
expect 0 profile @mlp:3x16x4 --seconds 0 --threads 1 --trace "$dir/trace.json"
out_has "^ *0 .* %$\|^ *0 .* of it$" profile
out_has "medians of 5 rounds.*GFLOP/s" profile
[ -z "$have_python" ] || python3 - "$dir/trace.json" <<'PY' || fail "profile --trace"
import json, sys
spans = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
sys.exit(not (len([e for e in spans if e["tid"] == 2]) >= 1 and all(e["dur"] >= 0 for e in spans)))
PY
expect 0 profile @relu:2x2 --device null --seconds 0
out_has "^null: kernels" "profile --device null"
expect 1 profile @relu:2x2 --mode=immediate && err_has "mode graph instead" "a profile of immediate mode"
expect 1 profile @relu:2x2 --trace "$dir/none/trace.json" && err_has "cannot write" "a trace that cannot be written"

# A failed operation: code 1, with a message that names what failed.
expect 1 run "$dir/nothing.tn" && err_has "nothing.tn" "a missing file"
printf 'graph @x(a f32[2]) {\n  %%1 = nonsense a\n  return %%1\n}\n' >"$dir/bad.tn"
expect 1 run "$dir/bad.tn" && err_has "bad.tn:2:" "a malformed graph"
expect 1 ops no_such_op
expect 1 tune @relu:3x3 --mode=immediate && err_has "tn_tune" "tuning of immediate mode"
expect 2 opt @relu:2x2 --passes no_such_pass && err_has no_such_pass "an unknown pass"
expect 1 run @relu:2x2 --input x=@"$dir/nothing.npy"
TENON_CPU=c TENON_CC=/nonexistent/cc TENON_CACHE_DIR=$dir/empty expect 1 run @relu:2x2 && err_has "/nonexistent/cc" "an absent compiler"
TENON_CPU=vax TENON_CACHE_DIR=$dir/empty expect 1 run @relu:2x2 && err_has "there are: x86" "an unknown code generator"

# JSON, schema 1; data on stdout only.
while read -r line; do
    # shellcheck disable=SC2086
    expect 0 $line --json
    is_json "$line"
done <<'LIST'
run @softmax:2x5
run @digits-train:2 --steps 3 --mode loop
opt @softmax:2x5 --verify --check
opt --list
emit @relu:2x2
explain @mlp:3x8x2
profile @mlp:3x8x2 --seconds 0
verify @softmax:3x4
ops
ops tanh dot sum
opcodes linear_relu --fusion 0,1
opcodes --list
cache stats
cache prune --max-bytes=1G
tune @matmul:33x40x50 --seconds 0.1 --threads 1 --dry-run
tune @digits-train:3 --seconds 0.3 --threads 2
tune @relu:100x100 --seconds 0.05
cache prune --tuning
devices
bench machine
bench ladder matmul --sizes 17,32 --seconds 0.01
bench ladder relu --sizes 33 --seconds 0.01
bench ladder softmax --sizes 33 --seconds 0.01
bench ladder fused --sizes 20 --seconds 0.01
bench modes --depths 4 --sizes 8 --seconds 0.01
bench modes --depths 3,5 --sizes 7 --batch 1,3 --modes graph,compiled --fusion 0-3 --seconds 0.01
LIST

# The rows that scripts rely on.
expect 0 bench modes --depths 4 --sizes 8 --seconds 0.01 --csv "$dir/rows.csv" --svg "$dir/plot.svg" --json
for key in work mode fusion depth size batch threads median_us p10_us p90_us compile_us transfer_us kernels bytes_read bytes_written mallocs gflops peak_ratio max_abs_err max_ulp; do
    out_has "\"$key\":" "bench modes --json"
    grep -q "$key" "$dir/rows.csv" || fail "no column $key in the CSV"
done
for mode in naive immediate graph compiled loop; do
    out_has "\"mode\": \"$mode\"" "bench modes --json"
done
for key in cpu isa cores peak_gflops copy_gbs; do
    out_has "\"$key\":" "bench modes --json"
done
grep -q '</svg>' "$dir/plot.svg" || fail "the plot is not an SVG file"
[ -n "$have_python" ] && { python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$dir/plot.svg" || fail "the plot is not XML"; }
if [ -n "$have_python" ] && [ -z "$SANITIZE" ]; then # the counter sees the library: compiling allocates, running does not
    python3 - "$dir/out" <<'PY' || fail "allocations of the modes"
import json, sys
for r in json.load(open(sys.argv[1]))["rows"]:
    if r["mode"] == "naive" and not r["mallocs"] > 0: sys.exit("naive counts no allocation")
    if r["cache"] == "on" and r["mode"] in ("graph", "compiled", "loop") and r["mallocs"] != 0: sys.exit(f"{r['mode']} allocates {r['mallocs']} times a run")
PY
fi

# Values: exact ones through every way in and out.
expect 0 run @relu:2x3 --input x=2x3xf32:1,-2,nan,4,-inf,0.5 --quiet
printf 'y f32[2,3]\n[[1, 0, nan],\n [4, 0, 0.5]]\n' | cmp -s - "$dir/out" || { fail "relu of given values"; cat "$dir/out"; }
[ -s "$dir/err" ] && fail "--quiet is not quiet"
expect 0 run @relu:2x3 --input x=2x3xf32:1,-2,3,4,-5,0.5 --output y=@"$dir/y.npy"
[ -s "$dir/out" ] && fail "a saved output is printed too"
expect 0 run @relu:2x3 --input x=@"$dir/y.npy" --quiet
printf 'y f32[2,3]\n[[1, 0, 3],\n [4, 0, 0.5]]\n' | cmp -s - "$dir/out" || { fail "npy out and in again"; cat "$dir/out"; }
for mode in immediate graph compiled loop; do
    expect 0 run @softmax:3x5 --mode $mode --quiet
    cp "$dir/out" "$dir/$mode.txt"
done
expect 0 run @mlp:5x8x3 --seed 4 --quiet
cp "$dir/out" "$dir/seed4"
expect 0 run @mlp:5x8x3 --seed 4 --quiet
cmp -s "$dir/out" "$dir/seed4" || fail "the same seed gives other numbers"
expect 0 run @mlp:5x8x3 --seed 5 --quiet
cmp -s "$dir/out" "$dir/seed4" && fail "another seed gives the same numbers"

# One thread and two give the same bits in every mode.
for run in "@mlp:64x256" "@matmul:3x1000x900" "@layernorm:70x900" "@attention:2x16x32" "@cnn:20" "@softmax:300x1000" "@digits-train:40 --steps 3"; do
    for mode in immediate graph compiled loop; do
        for threads in 1 2; do
            # shellcheck disable=SC2086 # options of the model
            expect 0 run $run --mode $mode -t $threads --limit -1 --save-state "$dir/state$threads" --quiet
            cp "$dir/out" "$dir/threads$threads"
        done
        cmp -s "$dir/threads1" "$dir/threads2" || fail "$run, $mode: the outputs of one thread and of two differ"
        cmp -s "$dir/state1" "$dir/state2" || fail "$run, $mode: the states of one thread and of two differ"
    done
done

# Sizes that are given at run time.
cat > dims.tn <<'EOF'
graph @dims<batch 2..8 by 2>(x f32[batch,3]) {
  %1 = exp x f32[batch,3]
  %2 = sum %1 axes=[1] f32[batch,1]
  return %2 as "y"
}
EOF
"$tenon" run dims.tn --dim batch=4 2> /dev/null | grep -q 'y f32\[4,1\]' || fail "run --dim batch=4: $("$tenon" run dims.tn --dim batch=4 2>&1)"
"$tenon" run dims.tn --dim batch=3 2>&1 | grep -q 'dim batch is 3: expected 2 to 8, a multiple of 2' || fail "run --dim batch=3"
"$tenon" run dims.tn 2>&1 | grep -q 'dim batch is 2 to 8' || fail "run without --dim"
"$tenon" explain dims.tn | grep -q 'sizes given at run time: batch 2..8 by 2' || fail "explain with dims"
# Sums that would be kept for a row, in whose axis two of the run lie.
cat > windows.tn <<'EOF'
graph @windows<b 1..16, h 1..8>(x f32[b,h,h,4]) {
  %1 = reshape x                   f32[(b*h)*h,4,1]
  %2 = sum %1 axes=[1]             f32[(b*h)*h,1,1]
  %3 = expand %2                   f32[(b*h)*h,4,1]
  %4 = mul %1, %3                  f32[(b*h)*h,4,1]
  %5 = reshape %4                  f32[b,h,h,2,2,1]
  %6 = permute %5 perm=[0,5,1,3,2,4] f32[b,1,h,2,h,2]
  %7 = reshape %6                  f32[b,1,h*2,h*2]
  %8 = tanh %7                     f32[b,1,h*2,h*2]
  return %8 as "y"
}
EOF
"$tenon" compile windows.tn -o windows.program > out 2>&1 && "$tenon" verify windows.tn > out 2>&1 || fail "verify windows.tn: $(cat out)"
"$tenon" export dims.tn -o dims.cu --target cuda --quiet && grep -q 'dims_run(struct dims_ctx \*ctx, int64_t dim_batch, ' dims.cu || fail "export for a GPU with dims"
"$tenon" emit dims.tn | grep -q 'dims_run(struct dims_ctx \*ctx, int64_t dim_batch, ' || fail "emit with dims"
"$tenon" export dims.tn -o dims.c --dim batch=4 --quiet || fail "export --dim batch=4"
"$tenon" emit dims.tn --dim batch=4 | grep -q 'x\[12\]' || fail "emit --dim batch=4: $("$tenon" emit dims.tn --dim batch=4 | head -50)"
"$tenon" export dims.tn -o dims.c --dim batch=3 2>&1 | grep -q 'dim batch is 3: expected 2 to 8, a multiple of 2' || fail "export --dim batch=3"
"$tenon" tune dims.tn --dim batch=4 --seconds 0.1 --dry-run --quiet > /dev/null || fail "tune --dim batch=4"
"$tenon" run dims.tn --input x=4x3xf32:0 2> /dev/null | grep -q 'y f32\[4,1\]' || fail "run --input x=4x3: $("$tenon" run dims.tn --input x=4x3xf32:0 2>&1)"
"$tenon" run dims.tn --input x=4x2xf32:0 2>&1 | grep -q 'axis 1 of "x" is 3; given is 2' || fail "run --input x=4x2"
"$tenon" run dims.tn --dim batch=4 --dim bath=4 2>&1 | grep -q 'no dim "bath"' || fail "run --dim bath"
# The same of an ONNX model's dims: one program, kept under its range, for inputs of any size.
printf 'graph @rows(x f32[2,4]) {\n  %%1 = exp x f32[2,4]\n  return %%1 as "y"\n}\n' > rows.tn
"$tenon" emit rows.tn --target=onnx -o "$dir/rows.onnx" --quiet || fail "emit --target=onnx"
for n in 1 5 8; do
    "$tenon" run "$dir/rows.onnx" --dim 'x[0]=1..8' --dim "x_0_=$n" --limit -1 --quiet > "$dir/open" || fail "run --dim x[0]=1..8, $n rows"
    "$tenon" run "$dir/rows.onnx" --dim "x[0]=$n" --limit -1 --quiet > "$dir/fixed" || fail "run --dim x[0]=$n"
    cmp -s "$dir/open" "$dir/fixed" || fail "$n rows of an open dim: $(cat "$dir/open" "$dir/fixed")"
done
"$tenon" run "$dir/rows.onnx" --dim 'x[0]=1..8' --input x=5x4xf32:1 2> /dev/null | grep -q 'y f32\[5,4\]' || fail "run --input with an open dim"
"$tenon" compile "$dir/rows.onnx" --dim 'x[0]=2..8:2' -o "$dir/rows.program" --quiet || fail "compile --dim x[0]=2..8:2"
"$tenon" run "$dir/rows.program" --dim x_0_=6 2> /dev/null | grep -q 'y f32\[6,4\]' || fail "run of a program with an open dim"
"$tenon" run "$dir/rows.onnx" --dim 'x[0]=2..8:2' --dim x_0_=3 2>&1 | grep -q 'a multiple of 2' || fail "run with 3 of 2..8:2"
"$tenon" explain "$dir/rows.onnx" --dim 'x[0]=1..8' | grep -q 'sizes given at run time: x_0_ 1..8' || fail "explain --dim x[0]=1..8"
"$tenon" profile "$dir/rows.onnx" --dim 'x[0]=1..8' --dim x_0_=3 --seconds 0 2> /dev/null | grep -q kernel || fail "profile --dim x[0]=1..8"
"$tenon" emit "$dir/rows.onnx" --dim 'x[0]=1..8' --target=graph | grep -q 'x f32\[x_0_,4\]' || fail "emit --dim x[0]=1..8"
"$tenon" run "$dir/rows.onnx" --dim 'x[0]=1..8' --dim 'x[0]=3' 2> /dev/null | grep -q 'y f32\[3,4\]' || fail "run --dim x[0]=1..8 --dim x[0]=3"
"$tenon" verify "$dir/rows.onnx" --dim 'x[0]=1..8' | grep -q '^x_0_=8$' || fail "verify --dim x[0]=1..8"
"$tenon" emit "$dir/rows.onnx" --dim 'x[0]=1..8' --dim 'x[0]=5' | grep -q 'x\[20\]' || fail "emit --dim x[0]=5"
for wrong in x[0]=1.. x[0]=..4 x[0]=1..4: x[0]=1..4:z =1..4 x[0]=1...4; do
    "$tenon" run "$dir/rows.onnx" --dim "$wrong" 2>&1 | grep -q 'expected NAME=SIZE or NAME=LO..HI' || fail "--dim $wrong"
done
"$tenon" run "$dir/rows.onnx" --dim 'y[0]=1..4' 2>&1 | grep -q "no input has a dim 'y\[0\]'" || fail "a range of no dim"

# Emitted C, compiled with cc -O2 and a small main, gives the numbers of `tenon run`.
standalone() { # standalone MODEL NAME IN_COUNT OUT_COUNT OPTIONS...: the last call's output, one number a line
    local model=$1 name=$2 in=$3 out=$4
    shift 4
    expect 0 emit "$model" --target=c --output "$dir/emitted.c" "$@"
    cat >"$dir/main.c" <<C
#include <stdio.h>
#define ${name^^}_INTERFACE
#include "emitted.c"
int main(void) {
    struct ${name}_ctx ctx;
    static unsigned char arena[${name^^}_ARENA_BYTES];
    static float x[$in], y[$out];
    for (int i = 0; i < $in; i++) x[i] = 0.25f;
    if (${name}_init(&ctx, arena, sizeof arena, NULL, 0, NULL, 0)) return 1;
    ${name}_run(&ctx, x, y);
    ${name}_run(&ctx, x, y);
    for (int i = 0; i < $out; i++) printf("%.4f\\n", y[i]);
    return 0;
}
C
    $CC -O2 -Wno-psabi -o "$dir/emitted" "$dir/emitted.c" "$dir/main.c" -lm || { fail "emitted C of $model does not compile"; return; }
    "$dir/emitted" >"$dir/emitted.txt" || fail "emitted C of $model does not run"
}
for opts in "--threads=1" "--fusion=0 --threads=2"; do
    # shellcheck disable=SC2086
    standalone @mlp:9x13x5 mlp 65 65 $opts
    expect 0 run @mlp:9x13x5 --input x=5x13xf32:0.25 --limit=-1 --quiet
    sed 1d "$dir/out" | tr -d '[] \n' | tr , '\n' | awk 'NF { printf "%.4f\n", $1 }' | cmp -s - "$dir/emitted.txt" ||
        fail "emitted C of @mlp ($opts) gives other numbers"
done

# A graph through stdin, and through opt and back.
"$tenon" opt @softmax:2x5 --quiet >"$dir/soft.tn" || fail "opt prints no graph"
"$tenon" run - --quiet <"$dir/soft.tn" >"$dir/a" || fail "run - fails"
"$tenon" run @softmax:2x5 --quiet >"$dir/b" || fail "run fails"
cmp -s "$dir/a" "$dir/b" || fail "a graph from stdin gives other numbers"
"$tenon" verify - --quiet <"$dir/soft.tn" >/dev/null || fail "verify - fails"

# Parameters saved after training steps are the ones that the next run starts from.
expect 0 run @digits-train:4 --steps 4 --mode loop --save-state "$dir/a.st" --quiet
expect 0 run @digits-train:4 --steps 1 --mode loop --state "$dir/a.st" --quiet
tail -1 "$dir/out" >"$dir/continued"
expect 0 run @digits-train:4 --steps 5 --mode loop --quiet
tail -1 "$dir/out" | cmp -s - "$dir/continued" || fail "a saved state does not continue the training"

# Every model; elementwise ops of every kind as op codes.
models=0
for m in $("$tenon" help models | sed -n 's/^  @\([a-z0-9_-]*\).*/\1/p'); do
    expect 0 opt "@$m" --quiet
    models=$((models + 1))
done
[ $models -ge 10 ] || fail "only $models models"
for op in exp max lt and not add; do
    expect 0 opcodes $op --fusion 0
    out_has "kernel @" "opcodes $op"
done

# No colour where NO_COLOR says so, nor where stdout is no terminal.
esc=$(printf '\033')
expect 0 --help
grep -q "$esc" "$dir/out" && fail "escapes on a stdout that is no terminal"
if command -v script >/dev/null; then
    script -qec "$tenon --help" /dev/null >"$dir/tty" 2>/dev/null </dev/null
    grep -q "$esc\[1m" "$dir/tty" || fail "no colour on a terminal"
    NO_COLOR=1 script -qec "$tenon --help" /dev/null >"$dir/tty" 2>/dev/null </dev/null
    grep -q "$esc\[1m" "$dir/tty" && fail "colour in spite of NO_COLOR"
fi

# What is done in place and what is for nothing.
cat >"$dir/place.tn" <<'end'
graph @place(x f32[64,64], unused f32[3]) {
  %1 = dot x, x
  %2 = max %1, 0.0
  %3 = dot %2, x
  return %3 as "y"
}
end
expect 0 explain "$dir/place.tn" --fusion 0
out_has "no result depends on input unused f32\[3\]" "explain"
out_has "in place: %5 max f32\[64,64\] over %3 dot f32\[64,64\]" "explain"
expect 0 explain "$dir/place.tn" --fusion 0 --json
is_json explain
out_has '"in_place":\[{"value":5,"over":3}\]' "explain --json"
out_has '"predicted_us":[0-9.e-]*,"predicted_bound":"[a-z ]*","level_bytes":{"l1":[0-9]*,"l2":[0-9]*,"l3":[0-9]*,"memory":[0-9]*}' "explain --json: the cost model"
out_has '"unused":\["unused"\]' "explain --json"

expect 0 verify @conv1d:2x37x3x5x4
expect 0 verify @fractional_pool:2x13x3x9
expect 0 verify @softmax:3x4 --modes immediate,graph
out_has "bit for bit as in immediate" "verify"
expect 0 verify @attention:2x8x8
out_has "bit for bit as in immediate\|of 21 values have other bits than in immediate, by at most [0-9]" "verify"
expect 0 verify @attention:2x8x8 --json
out_has '"other_bits": [0-9]*, "max_apart": ' "verify --json"

# Parameters of a file in an emitted program.
expect 0 run @mlp:2x8 --save-state "$dir/mlp.safetensors"
expect 0 emit @mlp:2x8
cp "$dir/out" "$dir/one.c"
expect 0 emit @mlp:2x8 --seed 2
cmp -s "$dir/out" "$dir/one.c" && fail "emit --seed changes nothing"
expect 0 emit @mlp:2x8 --seed 2 --state "$dir/mlp.safetensors"
cmp -s "$dir/out" "$dir/one.c" || fail "emit --state has other parameters than the file"
expect 1 emit @mlp:4x8 --state "$dir/mlp.safetensors"
err_has "of the graph is not in the file" "emit --state of another network"

# How much of the log is shown.
TENON_LOG=debug expect 0 run @softmax:2x5
err_has "^tenon: debug: @softmax for cpu: 1 kernels" "TENON_LOG=debug"
TENON_LOG=debug expect 0 run @softmax:2x5 --quiet
grep -q debug "$dir/err" && fail "a log in spite of --quiet"
TENON_CACHE_BYTES=64MB expect 2 run @softmax:2x5
err_has "'64MB' is no size such as 64M" "TENON_CACHE_BYTES=64MB"
TENON_CACHE_BYTES=64M expect 0 run @softmax:2x5
TENON_LOG=loud expect 2 run @softmax:2x5
err_has "there is no level loud (error, warning, info, debug)" "TENON_LOG=loud"

# A full disk is an error, not silence.
if [ -w /dev/full ]; then
    "$tenon" ops >/dev/full 2>/dev/null
    [ $? = 1 ] || fail "a full disk goes unnoticed"
    expect 1 emit @mlp:8x64 --output=/dev/full # larger than a buffer: closing alone does not tell
    err_has "cannot write /dev/full" "emit to a full disk"
fi

echo "count: $checks runs of the program checked"
exit $bad
