#!/bin/bash
# A new elementwise op is one row of src/ir/ops.def: a scratch copy of the tree gets the row of `cube`, is built, and has the op in
# `tenon ops`, in the graph language, in compiled and graph mode, in the generated C header, with its gradient and its test. A new
# step of schedules is the file and the row that docs/schedules.md shows, and a test folder: the same build has it in --schedule.
# Labels: slow
set -eu
row='UNARY (cube, NUM, x * x * x, 2, 1.5, -2.0, 2.0, MUL(G, MUL(K(3), MUL(X, X))), "x to the third power")'
[ -z "$SANITIZE" ] || { echo "skipped: the copy is built without sanitizers, so the release run has said it all"; exit 77; }
[ "${TENON_CAMPAIGN:-full}" = full ] || { echo "skipped: the copy takes a twelfth of the time of make check; make check-all does it"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TENON_CACHE_DIR=$work/cache
checks=0
fail() { echo "FAIL: $*" >&2; exit 1; }
expect() { # expect WHAT TEXT COMMAND...: the command succeeds and its output contains the text
    local out
    out=$("${@:3}" 2>&1) || fail "$1: ${*:3} failed: $out"
    [[ $out == *"$2"* ]] || fail "$1: expected '$2' in: $out"
    checks=$((checks + 1))
}

# The copy, and the one line.
mkdir "$work/a"
for part in CMakeLists.txt LICENSE README.md cmake include src nn io data text serve onnx cli bench tests; do
    cp -r "$SOURCE_DIR/$part" "$work/a/"
done
cp -r "$work/a" "$work/b"
awk -v row="$row" 'FNR == NR { if (/^UNARY \(/) last = FNR; next } { print } FNR == last { print row }' \
    "$work/a/src/ir/ops.def" "$work/a/src/ir/ops.def" >"$work/b/src/ir/ops.def"
[ "$(diff -r "$work/a" "$work/b" | grep -c '^[<>]')" = 1 ] || fail "the change is not one line: $(diff -r "$work/a" "$work/b")"
(cd "$work" && git --no-pager diff --no-index --stat a b) || true # differences are exit code 1

# The step: its file and row as the documentation shows them.
shown() { sed -n '/^## Add a step/,$p' "$SOURCE_DIR/docs/schedules.md" | sed -n 's/^       //p'; }
shown | sed '/^STEP(/,$d' >"$work/b/src/loop/unit_loops.c"
shown | grep '^STEP(unit_loops' >>"$work/b/src/loop/steps.def"
mkdir "$work/b/tests/loop/unit_loops"
cat >"$work/b/tests/loop/unit_loops/one.k" <<'K'
# run: unit_loops
kernel @abs_3(b0 in f32[20], b1 out f32[20]) scalar {
  var i0 = 1 row
  var i1 = 20 row
  loop i0 = 0 .. 1 step 1
    loop i1 = 0 .. 20 step 1
      %3 = load b0[20*i0 + i1]  f32
      %4 = abs %3  f32
      store b1[20*i0 + i1], %4  f32
    end
  end
}
# expect
kernel @abs_3(b0 in f32[20], b1 out f32[20]) scalar {
  var i0 = 1 row
  var i1 = 20 row
  loop i1 = 0 .. 20 step 1
    %2 = load b0[i1]  f32
    %3 = abs %2  f32
    store b1[i1], %3  f32
  end
}
K
sed '/^# expect/,$d; s/i0 = 1/i0 = 2/; s/0 \.\. 1 /0 .. 2 /; s/\[20\]/[40]/g' "$work/b/tests/loop/unit_loops/one.k" >"$work/b/tests/loop/unit_loops/none.k"
echo '# refused: no loop has one iteration' >>"$work/b/tests/loop/unit_loops/none.k"

build=$work/build
cmake -S "$work/b" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O0 -DCMAKE_C_COMPILER="$CC" -DTENON_WERROR=ON >"$work/log" 2>&1 ||
    fail "cmake: $(tail -20 "$work/log")"
ninja -C "$build" -j2 tenon_program grad_test_gradcheck loop_test_loop >"$work/log" 2>&1 || fail "build: $(tail -20 "$work/log")"

# The program: listing, and values that are exact in f32 and i32.
expect "listing" "x to the third power" "$build/tenon" ops cube
cat >"$work/cube.tn" <<'TN'
graph @third_powers(x f32[7], k i32[4]) {
  %1 = cube x                                   f32[7]
  %2 = cube k                                   i32[4]
  return %1 as "y", %2 as "n"
}
TN
"$BUILD_DIR/tenon" run "$work/cube.tn" >/dev/null 2>&1 && fail "cube exists without its row"
for mode in compiled graph; do
    run=("$build/tenon" run "$work/cube.tn" --json --mode "$mode" --input "x=7xf32:-2,-0.5,0,1.5,3,inf,-inf" --input "k=4xi32:-3,0,2,1291")
    expect "$mode mode" '"data": [-8,-0.125,0,3.375,27,"inf","-inf"]' "${run[@]}"
    expect "$mode mode, integers that wrap around" '"data": [-27,0,8,-2143282125]' "${run[@]}"
done
expect "all modes against the evaluator" "" "$build/tenon" verify "$work/cube.tn"

# The header, and the gradient through the public interface: d/dx sum(cube x) = 3 x^2, once more 6 x.
expect "generated header" "TN_API tn_tensor tn_cube(tn_tensor x);" cat "$build/include/tenon/tenon_ops.h"
cat >"$work/user.c" <<'C'
#include <stdio.h>
#include <tenon/tenon.h>
int main(void) {
    tn_ctx *ctx = tn_ctx_new(NULL);
    tn_graph *g = tn_graph_new(ctx, "user");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(5)), d, dd;
    tn_program *p;
    tn_session *s;
    float in[5] = { -2, -0.5f, 0, 1.5f, 3 }, first[5], second[5];
    if (tn_grad(tn_sum(tn_cube(x), TN_ALL_AXES, 0), &x, 1, &d) || tn_grad(tn_sum(d, TN_ALL_AXES, 0), &x, 1, &dd)) return 1;
    tn_output(d, "d"), tn_output(dd, "dd");
    if (tn_compile(g, NULL, &p) || tn_session_new(p, &s)) return 1;
    if (tn_run(s, TN_BIND({ "x", in }, { "d", first }, { "dd", second }))) return 1;
    for (int i = 0; i < 5; i++) {
        if (first[i] != 3 * in[i] * in[i] || second[i] != 6 * in[i]) return printf("element %d: %g %g\n", i, first[i], second[i]), 1;
    }
    tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
    puts("gradients are right");
}
C
"$CC" -std=c11 -I"$build/include" -I"$work/b/include" "$work/user.c" -L"$build" -ltenon -Wl,-rpath,"$build" -o "$work/user" ||
    fail "a user's program with tn_cube does not build"
expect "gradients" "gradients are right" "$work/user"

# The step: its tests, and a schedule that names it.
expect "goldens of the step" "PASSED" env TENON_FUZZ_SEEDS=20 "$build/tests/loop_test_loop"
printf 'schedule @abs_2 { split i0 64; unit_loops; hoist; vectorize i0 8; tile }\n' >"$work/s"
printf 'graph @g(x f32[64]) {\n  %%1 = abs x f32[64]\n  return %%1 as "y"\n}\n' >"$work/abs.tn"
expect "the step in a schedule" "" "$build/tenon" run "$work/abs.tn" --threads 1 --schedule "$work/s"

# The test that the table generates: it passes, and checks one op more than before.
elementwise() { sed -n 's/^count: gradients of elementwise ops: \([0-9]*\) ops.*/\1/p' "$1"; }
"$BUILD_DIR/tests/grad_test_gradcheck" >"$work/before" 2>&1 || fail "test_gradcheck of this tree: $(tail -5 "$work/before")"
"$build/tests/grad_test_gradcheck" >"$work/after" 2>&1 || fail "test_gradcheck with cube: $(tail -5 "$work/after")"
[ $(($(elementwise "$work/before") + 1)) = "$(elementwise "$work/after")" ] ||
    fail "test_gradcheck checked $(elementwise "$work/before") ops before and $(elementwise "$work/after") now"
checks=$((checks + 1))
echo "count: $checks checks of an op added by one line"
