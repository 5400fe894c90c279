#!/bin/bash
# Exported C on other processors, simulated by qemu: inference and a training, with vectors of NEON and without vectors, with the C
# library's functions and with Tenon's own; and as WebAssembly in node. The numbers are those of `tenon run`.
# Labels: long
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
tenon=$BUILD_DIR/tenon failures=0 runs=0
export TENON_CACHE_DIR=$dir/cache
cd "$dir" || exit 1
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
cat >main.c <<'C'
#include "net.h"
#include <stdio.h>
int main(void) {
    static unsigned char arena[NET_ARENA_BYTES], state[NET_STATE_BYTES + 1];
    static float x[128], y[10];
    struct net_ctx ctx;
    for (int i = 0; i < 128; i++) x[i] = 0.25f;
    if (net_init(&ctx, arena, sizeof arena, state, NET_STATE_BYTES, NULL, 0)) return 1;
#ifdef TRAIN
    static int32_t t[2] = { 3, 3 };
    struct net_io io;
    io.in_x = x, io.in_t = t, io.out_loss = y;
    net_run_n(&ctx, 3, &io, NULL);
    printf("%.4f\n", (double)y[0]);
#else
    net_run(&ctx, x, y);
    for (int i = 0; i < 10; i++) printf("%.4f\n", (double)y[i]);
#endif
    return 0;
}
C
numbers() { sed 1d | tr -d '[] \n' | tr , '\n' | awk 'NF { printf "%.4f\n", $1 }'; }
"$tenon" run @cnn:1 --input x=1x8x8x1xf32:0.25 --limit=-1 --quiet | numbers >want.cnn
"$tenon" run @digits-train:2 --input x=2x8x8x1xf32:0.25 --input t=2xi32:3 --steps 3 --mode loop --limit=-1 --quiet | numbers | tail -1 >want.train
[ "$(wc -l <want.cnn)" = 10 ] && [ -s want.train ] || fail "tenon run: $(cat want.*)"

check() { # check COMPILER QEMU FLAGS MODEL WANT OPTIONS...
    local cc=$1 qemu=$2 flags=$3 model=$4 want=$5
    shift 5
    "$tenon" export "$model" -o net.c --name net --quiet "$@" || { fail "export $model $*"; return; }
    # shellcheck disable=SC2086
    $cc -std=c99 -O1 -Wall -Wextra -Wconversion -pedantic -Werror $flags -c net.c || { fail "$cc: $model $*"; return; }
    case "$*" in
    *freestanding*) "${cc%gcc}nm" -u net.o | grep -v ' __aeabi_' && fail "$cc: $model $* needs these" ;;
    esac
    # shellcheck disable=SC2086
    $cc -std=c99 -O1 $flags -static main.c net.o -lm -o prog && $qemu ./prog >got || { fail "$qemu: $model $*"; return; }
    cmp -s "want.$want" got || fail "$qemu: $model $*: $(paste "want.$want" got | head -3)"
    runs=$((runs + 1))
}
both() { command -v "$1" >/dev/null && command -v "$2" >/dev/null && echo 'int main(void) { return 0; }' >nothing.c && "$1" -static nothing.c -o nothing 2>/dev/null; }
if both aarch64-linux-gnu-gcc qemu-aarch64; then
    check aarch64-linux-gnu-gcc qemu-aarch64 "" @cnn:1 cnn --cpu=neon --freestanding
    check aarch64-linux-gnu-gcc qemu-aarch64 "-DTRAIN" @digits-train:2 train --cpu=neon --train
fi
if both arm-linux-gnueabihf-gcc qemu-arm; then
    check arm-linux-gnueabihf-gcc qemu-arm "-mfpu=neon" @cnn:1 cnn --cpu=neon
    check arm-linux-gnueabihf-gcc qemu-arm "-DTRAIN" @digits-train:2 train --cpu=scalar --train --freestanding
fi
# A Cortex-M4 without an operating system: what its program takes besides the weights, and what it says.
if command -v arm-none-eabi-gcc >/dev/null && command -v qemu-arm >/dev/null; then
    cp -r "$SOURCE_DIR/examples/export" bare
    make -s -C bare bare BARE=-DSIMULATED TENON="$tenon" >sizes 2>err || fail "make bare: $(cat err)"
    weights=$(stat -c %s bare/bare_net.bin)
    read -r text data bss _ < <(tail -1 sizes)
    taken=$((text + data + bss - weights))
    echo "Cortex-M4: code and constants $((text + data - weights)) bytes, arena and arrays $bss, weights $weights"
    [ $taken -gt 1000 ] && [ $taken -le 65536 ] || fail "the program of the Cortex-M4 takes $taken bytes besides the weights"
    qemu-arm bare/bare 2>got # semihosting
    awk '{ printf "%d\n", 10000 * $1 + 0.5 }' want.cnn >want.bare
    paste want.bare got | awk '{ d = $1 - $2; if (d > 1 || d < -1) bad = 1 } END { exit bad || NR != 10 }' || fail "the Cortex-M4 says $(paste want.bare got | tr '\n' ' ')"
    runs=$((runs + 1))
fi
if command -v clang >/dev/null && command -v wasm-ld >/dev/null && command -v node >/dev/null; then
    cat >page.js <<'JS'
WebAssembly.instantiate(require('fs').readFileSync('net.wasm')).then(({ instance: { exports: net } }) => {
    if (net.init()) process.exit(1);
    new Float32Array(net.memory.buffer, net.in_x(), 64).fill(0.25);
    net.run();
    for (const v of new Float32Array(net.memory.buffer, net.out_p(), 10)) console.log(v.toFixed(4));
});
JS
    for cpu in neon scalar; do
        "$tenon" export @cnn:1 -o net.c --name net --quiet --target=wasm --cpu=$cpu
        flags=$(sed -n 's/^ \* *clang \(.*\) net.c -o net.wasm$/\1/p' net.c)
        # shellcheck disable=SC2086
        clang $flags -std=c99 -Wall -Wextra -Werror net.c -o net.wasm || fail "clang $flags"
        node page.js >got || fail "node: exit code $?"
        cmp -s want.cnn got || fail "wasm: $(paste want.cnn got | head -3)"
        runs=$((runs + 1))
    done
fi
[ $runs = 0 ] && [ $failures = 0 ] && { echo "skipped: no cross compiler with qemu-aarch64 or qemu-arm, no node with clang and wasm-ld"; exit 77; }
echo "count: $runs exported programs on other processors"
exit $((failures > 0))
