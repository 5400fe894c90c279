/* support.h - what the tests share: random numbers and inputs, comparison with proven error bounds, random graphs, reduction of
 * failing graphs. Everything allocates from the arena it is given; memory of results belongs to that arena.
 *
 * A differential test is five lines:
 *     graph *g = randgraph(a, seed, NULL);
 *     sample in = sample_make(g, a, seed);
 *     eval_value *want = eval_graph(g, a, in.values);
 *     double **bound = bound_graph(g, a, want);
 *     ... run the code under test on in.data, then for every output v: compare(g, v, got, want[v], bound[v], 4, text, sizeof
 * text) < 0 */
#ifndef TN_TESTS_SUPPORT_H
#define TN_TESTS_SUPPORT_H

#include "eval/eval.h"
#include "ir/graph.h"

/* Whether the build is sanitized: then a test leaves out what runs in programs of its own, which no sanitizer sees. */
#if defined(__has_feature)
#define TEST_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED 0
#endif

/* ---- contexts: TENON_CPU of the environment chooses the code generator, as in the program ---- */

tn_config test_config(void);
tn_ctx *test_ctx(void); /* of test_config */
/* The device to compile for, by TENON_DEVICE of the environment: the tests with the label `devices` are the conformance suite
 * of all of them. */
const char *test_device(void);
bool test_device_is_cpu(void);
/* Oclgrind, which the simulator of OpenCL: a thousand times slower than a processor. */
bool test_device_is_simulated(void);

/* ---- scope: an arena and a guard round the body of a test ---- */

/* Calls body(arena, ud). Returns TN_OK, or the status of the failure that body jumped out with; out (may be NULL) gets its
 * text. */
tn_status with_arena(void (*body)(arena *a, void *ud), void *ud, err *out);
/* ARENA_TEST(name) { ... } is a cmocka test whose body has an arena `a`; a jump out of it fails the test with the error's text.
 */
#define ARENA_TEST(name)                                                                                                       \
    static void name##_body(arena *a, void *ud);                                                                               \
    static void name(void **state) {                                                                                           \
        err e;                                                                                                                 \
        (void)state;                                                                                                           \
        if (with_arena(name##_body, NULL, &e) != TN_OK) fail_msg("%s: %s", tn_status_name(e.code), e.text);                    \
    }                                                                                                                          \
    static void name##_body(arena *a __attribute__((unused)), void *ud __attribute__((unused)))

/* ---- random numbers: splitmix64, the same on every machine ---- */

typedef struct rng {
    uint64_t state;
} rng;
rng rng_make(uint64_t seed);
uint64_t rng_next(rng *r);
int64_t rng_below(rng *r, int64_t n);                /* 0 .. n-1; 0 when n <= 0 */
int64_t rng_between(rng *r, int64_t lo, int64_t hi); /* lo .. hi, both included */
double rng_unit(rng *r);                             /* [0, 1) */
double rng_range(rng *r, double lo, double hi);
bool rng_chance(rng *r, double p);

/* Seeds of a test over random graphs: [*out_first, *out_first + result). TENON_FUZZ_SEEDS and TENON_FUZZ_FIRST of the
 * environment replace the defaults; a test that uses this has the label `random` in its head comment. */
uint64_t fuzz_seeds(uint64_t n_default, uint64_t *out_first);

/* What a test does that takes long and is no random graph. A run by hand and `make check-all` do all of it; where
 * TENON_CAMPAIGN=short (so `make check`), a share of it: fewer rounds of the same, with the same assertions. The counts that a
 * test prints are those of what it did. Scripts: support/campaign.sh. */
bool campaign_is_short(void);
int campaign(int full, int short_); /* one of the two */
/* Whether case i of a list is done: each of them, or one of `share` in turns. The turn is TENON_TURN (default 0), which
 * `make check` sets to the day and prints: share days do all cases. */
bool campaign_has(uint64_t i, uint64_t share);

/* Whether TENON_CPU asks for code by the C compiler: a tenth of a second each time, so such tests do less. */
bool fuzz_by_c(void);

/* n finite, non-zero elements of [lo, hi] (whole numbers for integers; bool: both values). */
void fill_random(rng *r, tn_dtype t, void *data, int64_t n, double lo, double hi);

/* Random values of all inputs and states of a graph, typed (for the code under test) and for the evaluator. Index k is that of
 * g->inputs. Floats are in [-2, 2], integers in [-4, 8] (unsigned: [1, 8]). A state takes its initial value. */
typedef struct sample {
    void **data;
    size_t *bytes;
    eval_value *values;
} sample;
sample sample_make(const graph *g, arena *a, uint64_t seed);

/* ---- comparison ---- */

/* bound_graph: an upper bound of |kernel result - evaluator's value| for every element of every value, for kernels that compute
 * in the dtype (f16 and bf16: in f32, rounded at will in between), with the error of ops.def, in any order of summation.
 * Operand errors are carried through every op. INFINITY where nothing can be promised: an uncertain index, an overflow, a pole
 * in reach. A comparison that may go either way makes both sides of what depends on it possible. Integers and bool: 0 where
 * exact. While loops get a loose bound relative to the result. Result: [nodes.n] pointers, NULL for region nodes that were not
 * evaluated. */
double **bound_graph(const graph *g, arena *a, const eval_value *values);

/* Compares the typed array `got` of v with `want`. |got - want| <= slack * bound[i] must hold, where want is first rounded to
 * the dtype when bound is NULL (exact comparison). NaN must meet NaN and infinity the same infinity. Returns -1, or the index
 * of the first mismatch with a readable text. */
int64_t compare(const graph *g, val v, const void *got, eval_value want, const double *bound, double slack, char *text,
                size_t n_text);
/* Share of elements that a bound leaves unchecked (infinite). */
double unchecked_share(const graph *g, val v, const double *bound);

/* ---- random graphs ---- */

typedef struct randgraph_opts {
    int min_steps, max_steps; /* generator steps (1 to ~8 nodes each); 0 = 3..14 */
    int64_t max_elems;        /* of any tensor; 0 = 2000 */
    uint32_t
        dtypes; /* bit mask of allowed 1 << tn_dtype; 0 = all. bool and the i32 and i64 of indices and counters stay possible */
    bool no_states, no_random, no_zero_size, no_bitcast;
} randgraph_opts;
/* A valid compacted graph that depends on seed and options only. Values stay finite and away from poles for inputs of
 * sample_make. */
graph *randgraph(arena *a, uint64_t seed, const randgraph_opts *opts);

/* randnet.c: a network of a few layers, most with a training step (counted in *differentiated), as users write them. */
graph *randnet(arena *a, uint64_t seed, int *differentiated);

/* The same with as many rows as the dim "rows" says, from 1 on. */
graph *randnet_dims(arena *a, uint64_t seed, int *differentiated);
/* randdims.c: a random graph with one or two symbolic dims; NULL where that of the seed has no such form. */
graph *randdims(arena *a, uint64_t seed);

/* randcontrol.c: the text of a random graph with ifs, whiles and scans; dims: with as many columns as n says, and scans of
 * length t.
 */
const char *randcontrol(arena *a, uint64_t seed, bool dims);

/* randcase.c: gradients of all float outputs by all float inputs as further outputs. False: g has none, and is left in pieces.
 */
bool try_differentiate(graph *g, arena *a);
/* randcase.c: the graph of a seed for the bulk tests: of every 16, two are contractions large enough for panels in local memory
 * and for threads, two are networks; every second one of the others gets the gradients of its float outputs by its float inputs
 * as further outputs, where it has any (counted in *differentiated). */
graph *randcase(arena *a, uint64_t seed, int *differentiated);
/* n short random graphs of seeds from `first` on as one graph, in which they share nothing; every second one with gradients.
 * For devices whose compilers take long. */
graph *randcases(arena *a, uint64_t first, int n, int *differentiated);

/* ---- reduction ---- */

/* Shrinks g as long as fails() holds: drops outputs, cuts values off by fresh inputs, constants or their own operands, drops
 * unused inputs. fails must hold for g itself, and must not keep the graph. */
typedef bool (*graph_predicate)(graph *g, void *ud);
graph *reduce_graph(const graph *g, arena *a, graph_predicate fails, void *ud);
/* reduce_graph, then the text of the small graph on stderr. */
graph *reduce_and_print(const graph *g, arena *a, graph_predicate fails, void *ud);

#endif
