/* user.cpp - the first program of README.md as C++ (from C++11 on), with every macro of the headers that makes a value or a list.
 */
#include <tenon/tenon.h>
#include <tenon/tenon_io.h>
#include <tenon/tenon_ir.h>
#include <tenon/tenon_nn.h>

#include <cstdio>

int main() {
    tn_ctx *ctx = tn_ctx_new(nullptr);
    tn_graph *g = tn_graph_new(ctx, "first");
    tn_tensor x = tn_input(g, "x", TN_F32, TN_DIMS(3)), y = tn_sum(tn_mul(x, tn_exp(x)), TN_INTS(0), 0), dx;
    if (tn_grad(y, &x, 1, &dx)) return std::puts(tn_ctx_error(ctx)), 1;
    tn_tensor pair[2] = { dx, tn_sum(tn_full(g, TN_F32, TN_SCALAR, 0), TN_ALL_AXES, 1) };
    tn_output(y, "y"), tn_output(dx, "dx"), tn_output(tn_concat(pair, 1, 0), "pair"), tn_output(tn_nn_softmax(x, 0), "p");
    tn_compile_opts opts = TN_COMPILE_DEFAULTS;
    opts.threads = 1;
    tn_program *p;
    tn_session *s;
    float in[3] = { 0, 1, 2 }, out, d[3];
    if (tn_compile(g, &opts, &p) || tn_session_new(p, &s) || tn_run(s, TN_BIND({ "x", in }, { "y", &out }, { "dx", d })))
        return std::puts(tn_ctx_error(ctx)), 1;
    std::printf("%.4f %.4f %.4f %.4f\n", double(out), double(d[0]), double(d[1]), double(d[2]));
    tn_session_free(s), tn_program_free(p), tn_graph_free(g), tn_ctx_free(ctx);
    return 0;
}
