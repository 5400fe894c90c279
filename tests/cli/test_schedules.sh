#!/bin/bash
# Schedules as text: what `emit --target=schedule` prints gives the same kernels by --schedule; what is wrong in one is said with its
# place or its step; one written by hand computes the same values.
# A short campaign: a fifth of the models' programs, in turns.
# Labels: long
set -u
. "$SOURCE_DIR/tests/support/campaign.sh"
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0 same=0 i=0
export TENON_CACHE_DIR=$work/cache

fail() { echo "test_schedules: $*"; failed=1; }
models="matmul:64 matmul:300x200x1000 matmul:8x512x512 matmul:1x2048x1024 product_nt:200x300x500 product_tn:300x200x100 mlp:8x64 cnn
    digits-train:16 classifier-train:32 linear_softmax:64x64x64 attention softmax:64x1000 layernorm:64x256 conv:2x28x28x32x32 conv1d maxpool"
for model in $models; do
    for threads in 1 2; do
        for fusion in 1 2 3; do
            options="--threads=$threads --fusion=$fusion"
            campaign_has $((i++)) 5 || continue
            # shellcheck disable=SC2086
            {
                "$tenon" emit "@$model" $options --target=schedule >"$work/s" || fail "no schedule of @$model"
                "$tenon" emit "@$model" $options --target=kernels >"$work/old" || fail "no kernels of @$model"
                "$tenon" emit "@$model" $options --target=kernels --schedule "$work/s" >"$work/new" 2>&1
            }
            grep -q "^schedule @" "$work/s" || fail "an empty schedule of @$model"
            if cmp -s "$work/old" "$work/new"; then same=$((same + 1)); else fail "@$model $options: other kernels: $(head -1 "$work/new")"; fi
        done
    done
done

# The same for GPUs; without one the text is for a GPU as most are.
for model in matmul:300x200x1000 matmul:1x2048x1024 linear_softmax:64x64x64 mlp:8x64 cnn digits-train:16 softmax:64x1000 layernorm:64x256 conv1d \
    fractional_pool attention relu:1000x1000; do
    for options in "--device cuda --fusion 2" "--device cuda --fusion 3" "--device opencl --fusion 3"; do
        campaign_has $((i++)) 5 || continue
        language=${options#--device } language=${language%% *}
        # shellcheck disable=SC2086
        {
            "$tenon" emit "@$model" $options --target=schedule >"$work/s" 2>/dev/null || fail "no schedule of @$model"
            "$tenon" emit "@$model" $options --target="$language" >"$work/old" 2>/dev/null || fail "no program of @$model"
            "$tenon" emit "@$model" $options --target="$language" --schedule "$work/s" >"$work/new" 2>"$work/out"
        }
        if cmp -s "$work/old" "$work/new"; then same=$((same + 1)); else fail "@$model $options: another program: $(head -1 "$work/out")"; fi
    done
done

refuses() { # refuses TEXT MESSAGE
    printf '%s' "$1" >"$work/s"
    # shellcheck disable=SC2086
    out=$("$tenon" ${3:-run} @product:20x30x40 --schedule "$work/s" 2>&1) && fail "\"$1\" is taken"
    grep -qF -- "$2" <<<"$out" || fail "\"$1\": expected \"$2\", got: $out"
}
refuses 'schedule @dot_3 { vectorise i1 8 }' 'schedule:1:19: there is no step "vectorise"; the steps are reorder,'
refuses 'schedule @dot_4 { tile }' 'schedule @dot_4: the program has no kernel of that name; its kernels are dot_3'
refuses 'schedule @dot_3 { hoist; vectorize j1 8; tile }' 'step 2, "vectorize j1 8": the kernel has no loop j1'
refuses 'schedule @dot_3 { hoist }' 'there is no step "tile"'
refuses 'schedule @dot_3 { parallel k2; tile }' 'iterations of k2 are added up'
refuses 'schedule @dot_3 { tile; hoist }' 'this step comes before tile'
refuses 'schedule @dot_3 { bind_grid 256 }' 'its steps are for GPUs'
cuda="emit --device cuda --target=cuda"
refuses 'schedule @dot_3 { hoist }' 'nor one that binds loops to the threads of a GPU' "$cuda"
refuses 'schedule @dot_3 { tile }' 'its steps are for processors' "$cuda"
refuses 'schedule @dot_3 { bind_grid 100 }' '100 threads: expected a power of two up to 1024' "$cuda"
refuses 'schedule @dot_3 { bind_grid 256; vectorize_nests 4 }' 'no nest of a thread block' "$cuda"
refuses 'schedule @dot_3 { bind_grid 256; tile }' 'the loops are bound to threads of a GPU already' "$cuda"
"$tenon" run @product --mode immediate --schedule "$work/s" >"$work/out" 2>&1 && fail "immediate mode takes a schedule"
"$tenon" run @product --schedule "$work/none" >"$work/out" 2>&1 && fail "a file that is not there is taken"

# By hand: the same values as the model's, within rounding (the order of the sums is the same; the products are not contracted).
printf 'schedule @dot_3 {\n  hoist; vectorize i1 4; unroll_jam i0 3 # a small tile\n  pack b1 k2 16 tiles=2\n  parallel nb3\n  tile\n}\n' >"$work/s"
"$tenon" run @product:20x30x40 --threads 2 >"$work/old" 2>/dev/null || fail "no run"
"$tenon" run @product:20x30x40 --threads 2 --schedule "$work/s" >"$work/new" 2>/dev/null || fail "no run by hand"
cmp -s "$work/old" "$work/new" || fail "a schedule by hand gives other values"
"$tenon" explain @product:20x30x40 --threads 2 --schedule "$work/s" | grep -q 'schedule: hoist; vectorize i1 4;' || fail "explain"
"$tenon" explain @product:20x30x40 --json | python3 -c '
import json, sys
steps = json.load(sys.stdin)["kernels"][0]["schedule"]
sys.exit("tile" not in steps)' || fail "no schedule in the JSON of explain"

# The schedules of docs/schedules.md are possible.
told=0
echo 'graph @product(x bf16[1024,1024], w bf16[1024,1024]) {
  %3 = dot x, w contract=[1]x[0]
  return %3 as "y"
}' >"$work/bf16.tn"
while read -r steps; do
    echo "schedule @dot_3 { $steps }" >"$work/s"
    case $steps in *bind* | *tensorize*) device=cuda ;; *) device=cpu ;; esac
    case $steps in *tensorize*) graph=$work/bf16.tn ;; *) graph=@product:1024x1024x1024 ;; esac
    "$tenon" emit "$graph" --device $device --target=kernels --schedule "$work/s" >"$work/out" 2>&1 ||
        grep -q 'bytes of shared memory a thread block; the device has' "$work/out" || # more than a GPU as most are has
        fail "docs/schedules.md: $(cat "$work/out")"
    told=$((told + 1))
done < <(sed -nE 's/^\| `([^`]+)` \| [0-9].*/\1/p' "$SOURCE_DIR/docs/schedules.md")
[ $told -ge 19 ] || fail "docs/schedules.md has $told schedules; expected 19"

# A kernel that goes by blocks of rows has steps for each of its nests.
"$tenon" emit @linear_softmax --threads 1 --target=schedule >"$work/s" || fail "no schedule of @linear_softmax"
grep -q '^  nests {$' "$work/s" || fail "no nests: $(cat "$work/s")"
sed -i 's/unroll_jam r1 [0-9]*/unroll_jam r1 2/' "$work/s"
"$tenon" run @linear_softmax --threads 1 >"$work/old" 2>/dev/null || fail "no run by blocks"
"$tenon" run @linear_softmax --threads 1 --schedule "$work/s" >"$work/new" 2>"$work/out" || fail "no run with other nests: $(cat "$work/out")"
cmp -s "$work/old" "$work/new" || fail "other tiles of a nest give other values"

[ $failed = 0 ] && echo "count: $same schedules fed back give the same kernels"
exit $failed
