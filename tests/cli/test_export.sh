#!/bin/bash
# `tenon export`: what it writes compiles without a warning and gives the numbers of `tenon run`; what it refuses, and that a
# target that is full, unwritable or wrong is left as it was.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
tenon=$BUILD_DIR/tenon failures=0
export TENON_CACHE_DIR=$dir/cache
cd "$dir" || exit 1
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
refused() { # refused CODE TEXT ARGUMENTS...: says TEXT, writes nothing
    local code=$1 text=$2 before
    shift 2
    before=$(ls -A | grep -v '^err$')
    "$tenon" export "$@" >/dev/null 2>err
    [ $? = "$code" ] || fail "export $*: not exit code $code"
    grep -q -- "$text" err || fail "export $*: '$text' is not in: $(cat err)"
    [ "$before" = "$(ls -A | grep -v '^err$')" ] || fail "export $*: left $(ls -A)"
}
strict="-std=c99 -Wall -Wextra -Wconversion -pedantic -Werror"
compilers=("$CC $strict")
[ "$CC" != clang ] && command -v clang >/dev/null && compilers+=("clang $strict")

# main of an inference: all inputs 0.25, all outputs printed.
check() { # check MODEL NAME IN OUT OPTIONS...: two calls, the second compared with `tenon run`
    local model=$1 name=$2 in=$3 out=$4 up=${2^^} c
    shift 4
    "$tenon" export "$model" -o "$name.c" --name "$name" --quiet "$@" || { fail "export $model $*"; return; }
    cat >main.c <<C
#include "$name.h"
#include <stdio.h>
static void each(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    (void)ud;
    for (int i = 0; i < n; i++) piece(arg, i);
}
int main(void) {
    static unsigned char arena[${up}_ARENA_BYTES];
    static uint64_t weights[${up}_WEIGHTS_BYTES / 8 + 1];
    static float x[$in], y[$out];
    struct ${name}_ctx ctx;
    FILE *f = ${up}_WEIGHTS_BYTES ? fopen("$name.bin", "rb") : NULL;
    if (f && fread(weights, ${up}_WEIGHTS_BYTES, 1, f) != 1) return 1;
    if (f) fclose(f);
    for (int i = 0; i < $in; i++) x[i] = 0.25f;
    if (${name}_init(&ctx, arena, sizeof arena - 1, NULL, 0, weights, ${up}_WEIGHTS_BYTES) != ${up}_SMALL_ARENA) return 2;
    if (${up}_WEIGHTS_BYTES) {
        weights[2] ^= 1;
        if (${name}_init(&ctx, arena, sizeof arena, NULL, 0, weights, ${up}_WEIGHTS_BYTES) != ${up}_WRONG_WEIGHTS) return 3;
        weights[2] ^= 1;
        if (${name}_init(&ctx, arena, sizeof arena, NULL, 0, weights, ${up}_WEIGHTS_BYTES + 8) != ${up}_WRONG_WEIGHTS) return 4;
    }
    if (${name}_init(&ctx, arena, sizeof arena, NULL, 0, weights, ${up}_WEIGHTS_BYTES)) return 5;
#ifdef THREADS
    ctx.parallel_for = each;
#endif
    (void)each;
    for (int i = 0; i < 2; i++) ${name}_run(&ctx, x, y);
    for (int i = 0; i < $out; i++) printf("%.4f\\n", (double)y[i]);
    return 0;
}
C
    "$tenon" run "$model" --input "x=$shape:0.25" --limit=-1 --quiet | sed 1d | tr -d '[] \n' | tr , '\n' | awk 'NF { printf "%.4f\n", $1 }' >want
    for c in "${compilers[@]}"; do
        $c -O1 $flags main.c "$name.c" -lm -o prog || { fail "$c: $model $*"; continue; }
        ./prog >got || { fail "$model $*: exit code $?"; continue; }
        cmp -s want got || fail "$model $*: other numbers than tenon run"
    done
}
flags="" shape=5x13xf32
check @mlp:5x13x5 net 65 65 --cpu=scalar
check @mlp:5x13x5 net 65 65 --cpu=sse2 --weights net.bin
flags=-DTHREADS shape=1x8x8x1xf32
check @cnn:1 cnn 64 10 --cpu=avx2 --threads=3 --weights cnn.bin

# Time does not depend on data: no branch or loop of a kernel asks a register, but for scatters, which leave out places outside.
branches() { # branches FILE NAME: conditions that do
    sed -n "/ kernel_/,/^[a-z]* ${2}_/p" "$1" | grep -oE '\b(if|while|switch) \(.*|\bgoto\b.*|\bfor \([^;]*;[^;]*\bv[0-9]+\b.*' |
        grep -vE '^if \(\(uint64_t\)v[0-9]+ < [0-9]+ULL\)|^for \(int l = 0; l < [0-9]+; l\+\+\)'
}
for model in @cnn:2 @mlp:3x16 @attention:2x64x64 @layernorm:5x33 @digits-train:4 @gpt-train:2x16x32x1; do
    case $model in *train*) train=--train ;; *) train= ;; esac
    "$tenon" export "$model" -o still.c --name still --quiet $train || fail "export $model"
    [ -z "$(branches still.c still)" ] || fail "$model: branches on data: $(branches still.c still | head -3)"
done
sed '0,/^\( *\)\(float\|f32x[0-9]*\) v\([0-9]*\) = .*/s//&\n\1if (((float *)\&v\3)[0] > 0) return;/' still.c >planted.c
cmp -s still.c planted.c && fail "no branch was planted"
[ "$(branches planted.c still | wc -l)" = 1 ] || fail "a planted branch is not found"

# An object, which no compiler made.
if [ "$(uname -m)" = x86_64 ]; then
    for cpu in native sse2; do
        "$tenon" export @cnn:1 -o object.o --name object --target object --cpu=$cpu --quiet || fail "--target object --cpu=$cpu"
        sed '/^static void each/,/^}/d; /each/d; s/cnn/object/g; s/CNN/OBJECT/g; s/^#ifdef THREADS/#if 0/' main.c | sed '1i #define OBJECT_IMPLEMENTATION' >object.c
        for c in "${compilers[@]}"; do
            $c -O1 object.c object.o -o prog && ./prog >got || { fail "$c: object of $cpu"; continue; }
            cmp -s want got || fail "object of $cpu: other numbers than tenon run"
        done
    done
    # .. and as a static library, with an index that linkers read; of a name too long for a member's head, too.
    for name in object object_of_some_longer_name; do
        mkdir -p lib && rm -f lib/* && "$tenon" export @cnn:1 -o "lib/lib$name.a" --name "$name" --quiet || fail "lib$name.a"
        sed "s/object/$name/g; s/OBJECT/${name^^}/g" object.c >library.c
        [ "$(nm -s "lib/lib$name.a" 2>&1 | grep -c "^${name}_.* in ")" = 2 ] || fail "lib$name.a: index $(nm -s "lib/lib$name.a" 2>&1)"
        for c in "${compilers[@]}"; do
            $c -O1 -Ilib library.c -Llib "-l$name" -o prog && ./prog >got || { fail "$c: lib$name.a"; continue; }
            cmp -s want got || fail "lib$name.a: other numbers than tenon run"
        done
    done
    refused 1 'a library has its data inside' @cnn:1 -o libx.a --weights x.bin
    "$tenon" export @digits-train:2 -o x.o --target object --train --quiet && nm -u x.o | grep -q ' pow$' && grep -q 'link with -lm' x.h ||
        fail "an object that calls libm: $(nm -u x.o)"
    refused 1 'threads of the host' @cnn:1 -o x.o --target object --threads 2
    refused 1 'no machine code for neon' @cnn:1 -o x.o --target object --cpu neon
    refused 1 'data inside' @cnn:1 -o x.o --target object --weights x.bin
    refused 1 'there is no elf' @cnn:1 -o x.o --target elf
fi

# Sizes that a call gives: one text for all of them, with the numbers of `tenon run`; another size is refused by the call.
cp "$SOURCE_DIR"/tests/cli/export/*.tn .
sed 's/length=m/length=m reverse=1/' turns.tn >back.tn
cat >sizes.c <<'C'
#include "open.h"
#include <stdio.h>
static void each(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {
    (void)ud;
    for (int i = 0; i < n; i++) piece(arg, i);
}
int main(void) {
    static unsigned char arena[OPEN_ARENA_BYTES], state[OPEN_STATE_BYTES + 1];
    static float x[720], y[1440];
    static const int64_t sizes[][2] = { { 3, 8 }, { 6, 12 }, { 1, 2 }, { 3, 8 } };
    struct open_ctx ctx;
    for (int i = 0; i < 360; i++) x[i] = 0.25f;
    if (open_init(&ctx, arena, sizeof arena, state, OPEN_STATE_BYTES, NULL, 0)) return 1;
#ifdef THREADS
    ctx.parallel_for = each;
#endif
    (void)each;
#ifdef STEPS /* the second of two has the numbers; their arrays are as long as the sizes say */
    struct open_ring ring = { 2, 0 };
    struct open_io two = { { 7, 2 }, x, y };
    if (open_run_n(&ctx, 2, &two, &ring) != OPEN_WRONG_SIZE) return 6;
#endif
    if (open_run(&ctx, 7, 2, x, y) != OPEN_WRONG_SIZE || open_run(&ctx, 2, 3, x, y) != OPEN_WRONG_SIZE) return 2;
    if (open_run(&ctx, 0, 2, x, y) != OPEN_WRONG_SIZE || open_run(&ctx, 1, -2, x, y) != OPEN_WRONG_SIZE) return 3;
    for (int s = 0; s < 4; s++) {
        int64_t n = sizes[s][0] * sizes[s][1] * WIDTH;
        for (int i = 0; i < 1440; i++) y[i] = -7;
#ifdef STEPS
        for (int64_t i = 0; i < 720; i++) x[i] = i < n / WIDTH * 5 || i >= n / WIDTH * 10 ? 3 : 0.25f;
        two.dims[0] = sizes[s][0], two.dims[1] = sizes[s][1];
        if (open_run_n(&ctx, 2, &two, &ring)) return 4;
#else
        if (open_run(&ctx, sizes[s][0], sizes[s][1], x, y)) return 4;
#endif
        for (int64_t i = 0; i < n; i++) printf("%.4f\n", (double)y[i]);
        for (int64_t i = n; i < 1440; i++)
            if (y[i] > -7 || y[i] < -7) return 5;
    }
    return 0;
}
C
for model in sizes turns back; do
    for size in "3 8" "6 12" "1 2" "3 8"; do
        "$tenon" run $model.tn --input "x=${size/ /x}x5xf32:0.25" --limit=-1 --quiet | sed 1d | tr -d '[] \n' | tr , '\n' | awk 'NF { printf "%.4f\n", $1 }'
    done >want
    [ $model = sizes ] && width=20 || width=5
    for options in --cpu=scalar --cpu=avx2 "--cpu=sse2 --freestanding" "--cpu=avx2 --threads=3" "--cpu=avx2 --train" "--target=object --cpu=avx2" \
        "--target=object --cpu=sse2 --train"; do
        code=open.c flags=
        case "$(uname -m) $options" in x86_64*) ;; *object*) continue ;; esac
        case $options in *object*) code=open.o flags=-DOPEN_IMPLEMENTATION ;; *threads*) flags=-DTHREADS ;; esac
        case $options in *train*) flags="$flags -DSTEPS" ;; esac
        case $options in
        *train*) sed 's/(x f32/(state turn f32[] = 0, x f32/; s/^  \(return.*\)/  %t = add turn, 1.0\n  \1, %t -> turn/' $model.tn >given.tn ;;
        *) cp $model.tn given.tn ;;
        esac
        # shellcheck disable=SC2086 # words
        "$tenon" export given.tn -o $code --name open --quiet $options || { fail "export $model.tn $options"; continue; }
        for c in "${compilers[@]}"; do
            # shellcheck disable=SC2086 # words
            $c -O1 $flags -DWIDTH=$width sizes.c $code -lm -o prog || { fail "$c: $model.tn $options"; continue; }
            ./prog >got || { fail "$model.tn $options: exit code $?"; continue; }
            awk 'NR == FNR { w[NR] = $1; next } { d = $1 - w[FNR]; if (d > 2e-4 || d < -2e-4) exit 1 } END { if (FNR != length(w)) exit 1 }' want got ||
                fail "$model.tn $options: other numbers than tenon run"
        done
    done
done

# The example learns.
if [ -z "$SANITIZE" ]; then
    cp -r "$SOURCE_DIR/examples/export" board && make -s -C board run TENON="$tenon" CC="$CC" >out 2>err || fail "examples/export: $(cat out err)"
    grep -q 'the same after a restart: yes' out || fail "examples/export: $(cat out)"
    make -s -C board gpt GPT="4 16 32 1" TENON="$tenon" CC="$CC" >out 2>err && (cd board && ./gpt "$SOURCE_DIR/docs/architecture.md" 512) >out 2>err || fail "examples/export, gpt: $(cat out err)"
    [ "$(grep -c '^step' out)" = 8 ] && grep -q 'tokens a second' out || fail "examples/export, gpt: $(cat out)"
fi

# What it refuses.
refused 1 'cannot begin names of C' @mlp:4x8 -o x.c --name=7up
refused 1 'cannot begin names of C' @mlp:4x8 -o x.c --name=a-b
refused 1 'changes none of its states' @mlp:4x8 -o x.c --train
refused 1 'there is no z80' @mlp:4x8 -o x.c --cpu=z80
refused 1 'file of their own' @mlp:8x2048x1 -o x.c
refused 2 'where to' @mlp:4x8
refused 2 'where the header goes' @mlp:4x8 -o x.h
refused 2 'where the C text goes' @mlp:4x8 -o x.c --weights x.c
refused 1 'cannot create' @mlp:4x8 -o nowhere/x.c

# A file that cannot grow, as on a disk that is full: the old ones stay, and nothing else.
"$tenon" export @mlp:5x13x5 -o full.c --quiet --weights full.bin || fail "export"
before=$(cat full.* | cksum)
names=$(ls -A | grep -v '^err$')
(trap '' XFSZ && ulimit -f 8 && "$tenon" export @mlp:9x65x5 -o full.c --quiet --weights full.bin 2>err) && fail "a file too large was written"
grep -q 'full.*cannot write' err || fail "a file too large: $(cat err)"
[ "$before" = "$(cat full.* | cksum)" ] || fail "an export that failed changed the files that were there"
[ "$names" = "$(ls -A | grep -v '^err$')" ] || fail "an export that failed left something: $(ls -A)"
[ $failures = 0 ] && echo "exports: ${#compilers[@]} compilers"
exit $((failures > 0))
