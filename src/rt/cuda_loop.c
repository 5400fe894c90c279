/* cuda_loop.c - implementation of cuda_loop.h. The state is two 64-bit numbers: turns left, and the step. */
#include "rt/cuda_loop.h"

#include <stdio.h>

static const char control[] = ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
                              ".visible .entry control(.param .u64 handle, .param .u64 state, .param .u64 steps) {\n"
                              "  .reg .u64 %h, %s, %left, %step, %n; .reg .u32 %v; .reg .pred %p;\n"
                              "  ld.param.u64 %h, [handle]; ld.param.u64 %s, [state]; cvta.to.global.u64 %s, %s;\n"
                              "  ld.param.u64 %n, [steps];\n"
                              "  ld.global.u64 %left, [%s]; ld.global.u64 %step, [%s+8];\n"
                              "  sub.u64 %left, %left, 1; add.u64 %step, %step, %n;\n"
                              "  st.global.u64 [%s], %left; st.global.u64 [%s+8], %step;\n"
                              "  setp.ne.u64 %p, %left, 0; selp.u32 %v, 1, 0, %p;\n"
                              "  { .param .b64 a; .param .b32 b; st.param.b64 [a], %h; st.param.b32 [b], %v; call.uni "
                              "cudaGraphSetConditional, (a, b); }\n"
                              "  ret;\n}\n";

/* n units from one place to the other; the outer one of both moves on by `stride` bytes a step, and begins again after
 * `length`. It is the one of the step `ahead` of the state's. */
#define MOVE(unit, load, store)                                                                                                \
    ".visible .entry move" unit "(.param .u64 state, .param .u64 from, .param .u64 to, .param .u64 stride, .param .u64 "       \
    "length, .param .u64 n, .param .u32 outward, .param .u64 ahead) {\n"                                                       \
    "  .reg .u64 %s, %f, %t, %o, %l, %n, %i, %d, %k, %a; .reg .u32 %x, %y, %z, %v<4>; .reg .pred %p, %q;\n"                    \
    "  ld.param.u64 %s, [state]; cvta.to.global.u64 %s, %s; ld.global.u64 %o, [%s+8]; ld.param.u64 %a, [ahead]; add.u64 %o, "  \
    "%o, %a;\n"                                                                                                                \
    "  ld.param.u64 %l, [length]; rem.u64 %o, %o, %l; ld.param.u64 %l, [stride]; mul.lo.u64 %o, %o, %l;\n"                     \
    "  ld.param.u64 %f, [from]; cvta.to.global.u64 %f, %f; ld.param.u64 %t, [to]; cvta.to.global.u64 %t, %t;\n"                \
    "  ld.param.u32 %x, [outward]; setp.ne.u32 %p, %x, 0; @%p add.u64 %t, %t, %o; @!%p add.u64 %f, %f, %o;\n"                  \
    "  mov.u32 %x, %ctaid.x; mov.u32 %y, %ntid.x; mov.u32 %z, %tid.x; mad.lo.u32 %x, %x, %y, %z; cvt.u64.u32 %i, %x;\n"        \
    "  mov.u32 %z, %nctaid.x; mul.lo.u32 %y, %y, %z; cvt.u64.u32 %d, %y; ld.param.u64 %n, [n];\n"                              \
    "again:\n"                                                                                                                 \
    "  setp.ge.u64 %q, %i, %n; @%q bra done;\n"                                                                                \
    "  mul.lo.u64 %k, %i, " unit "; add.u64 %a, %f, %k; " load "; add.u64 %a, %t, %k; " store ";\n"                            \
    "  add.u64 %i, %i, %d; bra again;\n"                                                                                       \
    "done:\n"                                                                                                                  \
    "  ret;\n}\n"

static const char moves[] = MOVE("1", "ld.global.u8 %v0, [%a]", "st.global.u8 [%a], %v0")
    MOVE("4", "ld.global.u32 %v0, [%a]", "st.global.u32 [%a], %v0")
        MOVE("16", "ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%a]", "st.global.v4.u32 [%a], {%v0, %v1, %v2, %v3}");

void cuda_loop_text(int arch, char *out) {
    snprintf(out, CUDA_LOOP_BYTES, ".version 8.3\n.target sm_%d\n.address_size 64\n%s%s", arch < 90 ? arch : 90, control,
             moves);
}
