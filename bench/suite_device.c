/* suite_device.c - timing and the ceiling of devices with memory of their own, for the benchmarks of suite.c. In: a session in
 * loop mode. Out: seconds of its steps. */
#include "suite.h"

#include <math.h>
#include <stdlib.h>

enum { LONGER = 32 /* steps for each that is asked for: the transfers vary by more than a few steps take */ };

static double run_seconds(cli *c, tn_session *s, const tn_binding *ring, int n, int64_t steps) {
    double start = cli_seconds();
    cli_need(c, tn_run_n(s, steps, ring, n, 1));
    return cli_seconds() - start;
}

double device_seconds(cli *c, tn_session *s, const tn_binding *ring, int n, int64_t times) {
    double one = run_seconds(c, s, ring, n, 1), all = run_seconds(c, s, ring, n, LONGER * times + 1);
    return fmax(all - one, 1e-9 * (double)times) / LONGER;
}

static double clock_copy(void *ud, int64_t times) {
    device_copy *p = ud;
    tn_binding ring = { "x", p->x };
    return device_seconds(p->c, p->session, &ring, 1, times);
}

device_copy *device_copy_new(cli *c, const char *device, double bytes) {
    device_copy *p = cli_alloc(sizeof *p);
    int64_t n = ((int64_t)(bytes / 8) + 1023) / 1024 * 1024;
    uint64_t seed = 1;
    *p = (device_copy){ .c = c, .graph = tn_graph_new(cli_ctx(c), "copy"), .bytes = 8 * (double)n };
    p->x = case_floats(n, 1, &seed), p->y = buffer_new((size_t)n * sizeof(float));
    tn_output(tn_neg(tn_input(p->graph, "x", TN_F32, TN_DIMS(n))), "y");
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    o.mode = TN_MODE_LOOP, o.device = device;
    cli_need(c, tn_compile(p->graph, &o, &p->program));
    cli_need(c, tn_session_new(p->program, &p->session));
    cli_need(c, tn_session_bind(p->session, tn_session_slot(p->session, "x"), p->x));
    cli_need(c, tn_session_bind(p->session, tn_session_slot(p->session, "y"), p->y));
    return p;
}

void device_copy_free(device_copy *p) {
    if (!p) return;
    tn_session_free(p->session);
    tn_program_free(p->program);
    tn_graph_free(p->graph);
    buffer_free(p->x);
    buffer_free(p->y);
    free(p);
}

stats_case device_copy_case(device_copy *p) {
    return (stats_case){ .clock = clock_copy, .ud = p, .label = "bandwidth", .companion = true };
}
