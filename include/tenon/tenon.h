/* tenon.h - the public interface of libtenon: contexts, graphs, tensors, gradients, programs, sessions.
 *
 * A program is written once, with the builders below, and runs five ways (see tn_mode). All functions are plain C11, usable
 * from C++. The library keeps no global state, never aborts, never prints, and reads no environment variables.
 *
 * Threads.  *Compatible* objects may be used by one thread at a time: tn_ctx, tn_graph, tn_session.
 *           *Safe* objects may be used by many at once: tn_program (immutable once compiled).
 *           So each thread may make and run sessions of its own of one shared program, while another builds and compiles.
 *           A context has one pool of threads for all of its sessions. Runs at the same time share it out; with as many of them
 *           as threads each is done by its caller alone. A host that has threads of its own gives tn_config.parallel_for.
 *           Of the library's own workers, one that keeps a caller waiting is kept off the caller's processor, or ends its part
 *           there; the affinity of other threads is never changed.
 * Errors.   Builders are sticky: the first error is kept in the graph, the returned tensor and those of all later builders are
 *           poisoned, and tn_compile reports it. Later calls whose operands are there are still checked: tn_graph_check reports
 *           all mistakes at once. Every other fallible function returns a tn_status; tn_ctx_error has the text.
 *           The text of a context belongs to the thread that last made a graph, compiled or made the context itself: programs
 *           and sessions used on other threads leave it alone, and tn_session_error has the text of a session's last error.
 * Memory.   All memory of a context and of what is made from it comes from tn_config.realloc. */
#ifndef TENON_H
#define TENON_H

#include <stddef.h>
#include <stdint.h>

/* What the macros below are made of: a value, and the address and the length of a list. A list lives as long as the call that
 * it is an argument of. */
#ifdef __cplusplus
#include <initializer_list>
#define TN_VALUE_(type, ...) (type{ __VA_ARGS__ })
#define TN_LIST_(type, ...) (std::initializer_list<type>{ __VA_ARGS__ }).begin()
#define TN_COUNT_(type, ...) ((int)(std::initializer_list<type>{ __VA_ARGS__ }).size())
#else
#define TN_VALUE_(type, ...) ((type){ __VA_ARGS__ })
#define TN_LIST_(type, ...) ((const type[]){ __VA_ARGS__ })
#define TN_COUNT_(type, ...) ((int)(sizeof((type[]){ __VA_ARGS__ }) / sizeof(type)))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TN_API __attribute__((visibility("default")))
#define TN_CHECK __attribute__((warn_unused_result))
#define TN_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define TN_API
#define TN_CHECK
#define TN_PRINTF(text, first)
#endif

#define TN_VERSION_MAJOR 0
#define TN_VERSION_MINOR 1
#define TN_VERSION_PATCH 0
#define TN_MAX_RANK 12

/* Version of the library that was loaded, as "0.1.0". */
TN_API const char *tn_version(void);

typedef enum {
    TN_OK = 0,
    TN_ERR_INVAL,       /* an argument is wrong in itself (NULL, negative size, unknown name) */
    TN_ERR_SHAPE,       /* shapes do not fit together */
    TN_ERR_DTYPE,       /* dtypes do not fit together */
    TN_ERR_UNSUPPORTED, /* legal, but not implemented for this device or op */
    TN_ERR_PARSE,       /* text or file is malformed; the message has line and column or offset */
    TN_ERR_IO,          /* the operating system refused; the message has its reason */
    TN_ERR_NOMEM,       /* an allocation failed */
    TN_ERR_DEVICE,      /* a device is missing or failed */
    TN_ERR_BUILD,       /* the compiler of generated code is missing or refused; the message has its log */
    TN_ERR_VERIFY,      /* two results that must agree do not */
    TN_ERR_INTERNAL     /* a defect in Tenon: please report it with the graph's text */
} tn_status;
/* Name of a status, as "TN_ERR_SHAPE". Never NULL. */
TN_API const char *tn_status_name(tn_status s);

/* Element types. f16 and bf16 are storage formats: arithmetic on them is done in f32 and rounded when stored. f8e4m3 and f8e5m2
 * (OCP's 8-bit floats) are stored, moved, chosen and converted only: cast them to calculate, which costs no memory, as
 * contractions and other kernels convert what they read. Integers wrap around. tn_cast: floats to integers truncate and
 * saturate, NaN gives 0; to 8-bit floats they round to nearest even and saturate, as ONNX's Cast does; integers to narrower
 * ones wrap around. */
typedef enum {
    TN_F32,
    TN_F64,
    TN_F16,
    TN_BF16,
    TN_I8,
    TN_I32,
    TN_I64,
    TN_U8,
    TN_BOOL,
    TN_I16,
    TN_U16,
    TN_U32,
    TN_U64,
    TN_F8E4M3,
    TN_F8E5M2,
    TN_N_DTYPES
} tn_dtype;
TN_API const char *tn_dtype_name(tn_dtype t); /* "f32"; "?" for an unknown value */
TN_API size_t tn_dtype_size(tn_dtype t);      /* bytes of one element */
typedef enum { TN_KIND_FLOAT, TN_KIND_INT, TN_KIND_UINT, TN_KIND_BOOL } tn_dtype_kind;
typedef struct {
    const char *name;
    tn_dtype_kind kind;
    int bytes;               /* of one element */
    double lo, hi;           /* smallest and largest finite value; of 64 bits the largest double that is one */
    int arithmetic;          /* 0 = it is stored, moved, chosen and converted only */
    const char *word;        /* the C type of its memory; floats of less than 32 bits are their bits */
    const char *numpy;       /* "<f4"; NULL = NumPy has none of its own */
    const char *safetensors; /* "F32" */
    int onnx, dlpack;        /* TensorProto.DataType, DLDataTypeCode */
} tn_dtype_info;
TN_API const tn_dtype_info *tn_dtype_get_info(tn_dtype t); /* NULL for an unknown value */

/* ---- context ------------------------------------------------------------------------------------------------------------- */

typedef struct tn_ctx tn_ctx;

typedef enum { TN_LOG_ERROR, TN_LOG_WARN, TN_LOG_INFO, TN_LOG_DEBUG } tn_log_level;

typedef struct {
    size_t struct_size; /* sizeof(tn_config): lets the struct grow */
    /* new_size 0 frees and returns NULL; old_size is the size given before; NULL result = out of memory. NULL = libc. Must be
     * thread-safe. */
    void *(*realloc)(void *ud, void *ptr, size_t old_size, size_t new_size);
    void *realloc_ud;
    void (*log)(void *ud, tn_log_level level, const char *text); /* NULL = silent; called from any thread */
    void *log_ud;
    /* Directory of the on-disk kernel cache, created with mode 0700; NULL = no disk cache. One that is full, cannot be written
     * or is not the user's alone is done without, and the log says so. */
    const char *cache_dir;
    const char *cache_subdir; /* appended to cache_dir after a slash; NULL = nothing */
    uint64_t cache_bytes;     /* bound of the disk cache; 0 = 1 GiB */
    uint64_t cache_memory;    /* bound of the kernels kept in memory; 0 = 64 MiB of code */
    /* C compiler of generated code, a path or a name looked up in PATH at the first build; NULL = "cc". One that takes longer
     * than 300 seconds is stopped, with its children: TN_ERR_BUILD. */
    const char *compiler;
    /* How programs for the device "cpu" become code: "x86" = straight to machine code for this processor (any x86-64; elsewhere
     * as "c"); "avx512bf16", "avx512vnni", "avx512", "avx2", "sse2" = the same for that instruction set; "c" = through the C
     * compiler, "c-avx2" and so on = for that instruction set, "c-neon" and "c-scalar" = with the bits of what is exported for
     * such a processor. NULL = "x86". What is unknown or impossible here is an error of the first compilation. */
    const char *cpu;
    int name_code; /* 1 = debuggers and profilers are told the names of kernels that went straight to machine code */
    /* Who runs the pieces of a run on the CPU; NULL = the library's own threads. Called by the thread that runs a session, with
     * n = tn_compile_opts.threads; it calls piece(arg, i) for each i of 0 .. n - 1 and returns when all these calls have
     * returned. On which threads, in which order and how many at a time is its choice, and changes no bit of a result: work is
     * claimed by whoever comes, and a piece may wait for one that has begun, so a piece, once begun, must not have to wait for
     * another on the same thread. Called from as many threads at once as sessions run. Such a context starts no threads. */
    void (*parallel_for)(void *ud, int n, void (*piece)(void *arg, int i), void *arg);
    void *parallel_ud;
} tn_config;

/* Fills cfg from TENON_CACHE_DIR (else XDG_CACHE_HOME/tenon, else HOME/.cache/tenon), TENON_CACHE_BYTES, TENON_CC, TENON_CPU
 * and TENON_NAME_CODE (1). The strings belong to the environment. The only function of the library that reads the environment.
 */
TN_API void tn_config_from_env(tn_config *cfg);

/* cfg NULL = defaults (libc memory, no log, no disk cache). NULL when out of memory. */
TN_API tn_ctx *tn_ctx_new(const tn_config *cfg);
TN_API void tn_ctx_free(tn_ctx *ctx); /* after everything made from it; NULL is fine */
/* Text of the last error of this context, with what was given, what was expected and where. Valid until the next call. Never
 * NULL. */
TN_API const char *tn_ctx_error(const tn_ctx *ctx);
TN_API tn_status tn_ctx_status(const tn_ctx *ctx);
/* The context's allocator, for libraries on top of this one: tn_config.realloc by its rules. NULL when out of memory. */
TN_API void *tn_ctx_realloc(tn_ctx *ctx, void *ptr, size_t old_size, size_t new_size);
/* Records an error as the functions of this library do, for libraries on top of it: tn_ctx_error gives the text. Returns code.
 */
TN_API tn_status tn_ctx_fail(tn_ctx *ctx, tn_status code, const char *text);

/* The kernel cache. What is on disk is shared by all processes that use the same directory; the rest is this context's. */
typedef struct {
    const char *dir;                         /* NULL = no disk cache; then the disk's numbers are 0 */
    uint64_t files, bytes;                   /* kernels on disk */
    uint64_t unfinished;                     /* temporary files there, of running or killed processes */
    int64_t oldest, newest;                  /* last use of a kernel, seconds since 1970; 0 when there is none */
    uint64_t limit;                          /* bytes allowed on disk */
    uint64_t modules, module_bytes;          /* loaded now */
    uint64_t memory_hits, disk_hits, builds; /* since the context was made */
    uint64_t tuned;                          /* kernels in the database of tn_tune */
} tn_cache_stats;
TN_API TN_CHECK tn_status tn_cache_get_stats(tn_ctx *ctx, tn_cache_stats *out);
/* Removes the least recently used kernels on disk until at most max_bytes are left (0 = all), and unfinished work older than an
 * hour. Safe while other processes use the cache. The counts removed are written to out_files and out_bytes (may be NULL). */
TN_API TN_CHECK tn_status tn_cache_prune(tn_ctx *ctx, uint64_t max_bytes, uint64_t *out_files, uint64_t *out_bytes);

/* Forgets what tn_tune found: the database and what this context knows of it. The number of its entries is written to
 * out_entries (may be NULL). */
TN_API TN_CHECK tn_status tn_cache_prune_tuning(tn_ctx *ctx, uint64_t *out_entries);

/* The devices that programs can be compiled for (tn_compile_opts.device). */
typedef struct {
    char name[64];
    char detail[256]; /* processor, instruction set */
    char isa[16]; /* "avx512bf16", "avx512vnni", "avx512", "avx2", "sse2", "neon", "generic"; empty where it means nothing */
    int threads;  /* CPU threads the process may use */
    int vector_bytes;                     /* widest useful vector */
    int64_t l1_bytes, l2_bytes, l3_bytes; /* data caches; 0 = unknown */
} tn_device_info;
TN_API int tn_device_count(void);
TN_API const char *tn_device_name(int i); /* "cpu"; of all that Tenon knows, here or not; NULL when there is no such i */
/* Opens device i to ask it, and closes it again. TN_ERR_DEVICE when it is not there: tn_ctx_error says what is missing; out has
 * its name. */
TN_API TN_CHECK tn_status tn_device_get_info(tn_ctx *ctx, int i, tn_device_info *out);

/* ---- graphs and tensors -------------------------------------------------------------------------------------------------- */

typedef struct tn_graph tn_graph;
typedef struct {
    tn_graph *graph;
    uint32_t id; /* 0 = poisoned: an earlier builder failed */
} tn_tensor;

typedef struct {
    int rank;
    int64_t dim[TN_MAX_RANK];
} tn_shape;
/* TN_DIMS(32, 784) is a tn_shape; TN_SCALAR is the shape of rank 0. TN_INTS(1, 2) is the pair (pointer, count) of a list
 * argument. */
#define TN_DIMS(...) TN_VALUE_(tn_shape, TN_COUNT_(int64_t, __VA_ARGS__), { __VA_ARGS__ })
#define TN_SCALAR TN_VALUE_(tn_shape, 0, { 0 })
#define TN_INTS(...) TN_LIST_(int64_t, __VA_ARGS__), TN_COUNT_(int64_t, __VA_ARGS__)
#define TN_ALL_AXES NULL, -1 /* for reductions: every axis */

/* Symbolic dims: sizes known only when a program runs. tn_dim gives a handle, a negative number that stands wherever a shape
 * has a dim: tn_input(g, "x", TN_F32, TN_DIMS(batch, 784)). One compiled program serves all values from lo to hi that are
 * multiples of multiple_of (1: all of them); memory is planned for the largest. The same name again is the same dim, and must
 * have the same range. tn_tensor_shape gives handles, too: calculate with them by tn_dim_add and the others, whose operands are
 * handles or numbers. -1 on errors, which stay with the graph. A graph has at most TN_MAX_DIMS dims. */
enum { TN_MAX_DIMS = 256 };
TN_API int64_t tn_dim(tn_graph *g, const char *name, int64_t lo, int64_t hi, int64_t multiple_of);
TN_API int64_t tn_dim_add(tn_graph *g, int64_t x, int64_t y);
TN_API int64_t tn_dim_mul(tn_graph *g, int64_t x, int64_t y);
TN_API int64_t tn_dim_floor_div(tn_graph *g, int64_t x, int64_t y); /* y: at least 1 for all values */
TN_API int64_t tn_dim_ceil_div(tn_graph *g, int64_t x, int64_t y);
TN_API int64_t tn_dim_min(tn_graph *g, int64_t x, int64_t y);
TN_API int64_t tn_dim_max(tn_graph *g, int64_t x, int64_t y);
TN_API tn_status tn_dim_range(tn_graph *g, int64_t x, int64_t *out_lo, int64_t *out_hi); /* between which all values are */
TN_API tn_tensor tn_dim_value(tn_graph *g, int64_t x);                                   /* i64[]: what the run gives */
/* "batch*2", or the number, to out, as snprintf does: n bytes with the end at most, and the text's length is returned. 0: x is
 * neither a number nor a dim of the graph, or there is no memory. */
TN_API size_t tn_dim_text(const tn_graph *g, int64_t x, char *out, size_t n);

TN_API tn_graph *tn_graph_new(tn_ctx *ctx, const char *name); /* NULL when out of memory */
/* A graph in which every builder computes its result before it returns (immediate mode): tn_tensor_read works at once, inputs
 * are given with tn_tensor_write before first use, and the recorded graph can still be differentiated and compiled. Inputs and
 * states alone change, by tn_tensor_write and tn_assign; every other tensor, a reshape or a slice too, keeps the value it had
 * when its builder returned. */
TN_API tn_graph *tn_graph_immediate(tn_ctx *ctx, const char *name);
/* The same on a device ("cpu", "cuda", "opencl"; NULL = "cpu"). On GPUs values stay on the device: builders queue and do not
 * wait; tn_tensor_read does. A device that is not there is the graph's error at the first value. */
TN_API tn_graph *tn_graph_immediate_on(tn_ctx *ctx, const char *name, const char *device);
TN_API void tn_graph_free(tn_graph *g);              /* NULL is fine */
TN_API tn_status tn_graph_status(const tn_graph *g); /* the sticky status of the builders */
TN_API tn_ctx *tn_graph_ctx(const tn_graph *g);
/* For layers written outside the library: records an error as a failing builder does, with the place of the call, and returns
 * the poisoned tensor. The first error of a graph stays. */
TN_API tn_tensor tn_graph_fail(tn_graph *g, tn_status code, const char *text);
/* Seed of the initial values that layers give their parameters (each depends on the seed and the parameter's name only). 0 at
 * first. */
TN_API void tn_graph_set_seed(tn_graph *g, uint64_t seed);
TN_API uint64_t tn_graph_seed(const tn_graph *g);

/* The text form (docs/ir.md). The string is malloc-ed by the context: free it with tn_string_free. A graph with a sticky error
 * has none: its status is returned. */
TN_API TN_CHECK tn_status tn_graph_print(const tn_graph *g, char **out_text);
/* Parses the text of one graph; `file` names it in messages. NULL on error: tn_ctx_error has every mistake in the text (the
 * first 20), each with line, column and the line itself. */
TN_API tn_graph *tn_graph_parse(tn_ctx *ctx, const char *text, size_t n_text, const char *file);
/* Reports every mistake of its builders, or every problem of the graph itself (op, shapes, place), one a line, as the context's
 * error text. */
TN_API TN_CHECK tn_status tn_graph_check(const tn_graph *g);
TN_API void tn_string_free(tn_ctx *ctx, char *text);

/* Names one tensor in listings and error texts (a path such as "enc/fc1"). Returns x. */
TN_API tn_tensor tn_label(tn_tensor x, const char *name);
/* Scopes: until tn_graph_pop, names of states, parameters and labels begin with the name made like printf's and a slash, behind
 * those of the scopes around: tn_graph_push(g, "layer%d", i). Inputs and outputs keep theirs. tn_graph_scope: "layer3/", ""
 * outside; valid until the graph is freed. */
TN_API void tn_graph_push(tn_graph *g, const char *format, ...) TN_PRINTF(2, 3);
TN_API void tn_graph_pop(tn_graph *g);
TN_API const char *tn_graph_scope(const tn_graph *g);
/* Contractions of f32 (products, convolutions, attention's) read and give numbers of t, TN_BF16 or TN_F16, in place: what they
 * read is rounded once, where it is computed or stored; constants and tables of gathers are stored so. All else is computed in
 * f32; inputs, states and outputs keep their types. Contractions of quantised numbers, or over one product, stay as they are.
 * Tensors of before are void (tn_graph_find gives inputs, states and outputs again). On an error the graph is unchanged. */
TN_API TN_CHECK tn_status tn_graph_contract_in(tn_graph *g, tn_dtype t);
/* While on is 1, tn_state and tn_param give the state again that has the name, dtype and shape already (0, at first: an error;
 * -1 changes nothing). So a layer is called twice with one set of parameters. Returns what it was before. */
TN_API int tn_graph_reuse(tn_graph *g, int on);
/* The input, state, output or labelled tensor of this name, scopes included; poisoned, without an error, when there is none. */
TN_API tn_tensor tn_graph_find(tn_graph *g, const char *name);
/* Remembers where the next builders are called from, for error texts; `where` is a string that outlives the graph, such as
 * "file.c:12". The macros of tenon_locations.h do it for C and C++ callers; define TN_NO_LOCATIONS to do without them. */
TN_API void tn_graph_at(tn_graph *g, const char *where);

TN_API tn_shape tn_tensor_shape(tn_tensor x); /* rank -1 for a poisoned tensor */
TN_API tn_dtype tn_tensor_dtype(tn_tensor x);
TN_API const char *tn_tensor_name(tn_tensor x); /* of an input or state; the label of another tensor, or NULL */
TN_API size_t tn_tensor_bytes(tn_tensor x);
/* Immediate mode: value of any tensor, row-major, `bytes` = tn_tensor_bytes(x). */
TN_API TN_CHECK tn_status tn_tensor_read(tn_tensor x, void *data, size_t bytes);
/* Immediate mode: value of an input or a state tensor, before what depends on it is built. In other graphs: the initial value
 * of a state, for programs that are compiled afterwards. */
TN_API TN_CHECK tn_status tn_tensor_write(tn_tensor x, const void *data, size_t bytes);
/* The same of all states at once: values[i] for tn_graph_state(g, i), as many bytes as it has. All are set, or, where memory
 * runs out, none. */
TN_API TN_CHECK tn_status tn_graph_write_states(tn_graph *g, const void *const *values);

/* Sources. */
TN_API tn_tensor tn_input(tn_graph *g, const char *name, tn_dtype t, tn_shape shape); /* bound by name in every run */
/* State: lives in the session from run to run (parameters, optimiser moments, counters). `init` (row-major, copied) may be NULL
 * = zeros. */
TN_API tn_tensor tn_state(tn_graph *g, const char *name, tn_dtype t, tn_shape shape, const void *init);
TN_API int tn_graph_n_states(const tn_graph *g);     /* parameters among them, in the order they were made; 0 after an error */
TN_API tn_tensor tn_graph_state(tn_graph *g, int i); /* poisoned when there is none */
/* Parameter: a state that optimisers train (see tenon_nn.h). The graph lists its parameters in the order they were made. */
TN_API tn_tensor tn_param(tn_graph *g, const char *name, tn_dtype t, tn_shape shape, const void *init);
TN_API int tn_graph_n_params(const tn_graph *g);
TN_API tn_tensor tn_graph_param(tn_graph *g, int i);                                  /* poisoned when there is none */
TN_API tn_tensor tn_const(tn_graph *g, tn_dtype t, tn_shape shape, const void *data); /* data is copied */
TN_API tn_tensor tn_full(tn_graph *g, tn_dtype t, tn_shape shape, double value);
TN_API tn_tensor tn_iota(tn_graph *g, tn_dtype t, tn_shape shape, int axis); /* 0, 1, 2, ... along axis */
/* Uniform f32 in [0, 1), 24 bits, Philox4x32-10 (Salmon et al., SC 2011) keyed by counter (i64[]) and stream: element i depends
 * on (counter, stream, i) alone, so the bits are the same in every mode and on every device. 0 <= stream < 2^61. */
TN_API tn_tensor tn_random_uniform(tn_tensor counter /* i64[] */, int64_t stream, tn_shape shape);
TN_API tn_tensor tn_random_normal(tn_tensor counter /* i64[] */, int64_t stream, tn_shape shape); /* f32, Box-Muller */
TN_API tn_tensor tn_random_bernoulli(tn_tensor counter /* i64[] */, int64_t stream, tn_shape shape, double p); /* bool */

/* Sinks. */
TN_API void tn_output(tn_tensor x, const char *name);
/* At the end of every run the state tensor takes this value (same shape and dtype). All reads in the graph see the old value.
 */
TN_API void tn_assign(tn_tensor state, tn_tensor value);

/* Elementwise builders tn_add(a, b), tn_exp(x), ... one for each row of src/ir/ops.def (`tenon ops` lists them). Operands
 * broadcast like NumPy; dtypes must be equal (use tn_cast). */
#include "tenon/tenon_ops.h"

TN_API tn_tensor tn_cast(tn_tensor x, tn_dtype t);
/* The same bits as another dtype of the same width: f32 and i32, f64 and i64. No gradient flows. NaNs may lose their payload.
 */
TN_API tn_tensor tn_bitcast(tn_tensor x, tn_dtype t);
/* x + s, x - s, x * s ..: the scalar takes x's dtype, and must be a value of it: 0.5 is an error for integers. (So for tn_full
 * and tn_pad.) */
TN_API tn_tensor tn_add_scalar(tn_tensor x, double s);
TN_API tn_tensor tn_sub_scalar(tn_tensor x, double s);
TN_API tn_tensor tn_mul_scalar(tn_tensor x, double s);
TN_API tn_tensor tn_div_scalar(tn_tensor x, double s);
TN_API tn_tensor tn_pow_scalar(tn_tensor x, double s);
TN_API tn_tensor tn_max_scalar(tn_tensor x, double s);
TN_API tn_tensor tn_min_scalar(tn_tensor x, double s);

/* Compositions of elementwise ops. */
TN_API tn_tensor tn_clamp(tn_tensor x, double lo, double hi); /* x within bounds, at which the gradient is 1; NaN stays */
TN_API tn_tensor tn_round_away(tn_tensor x);                  /* nearest whole number, halves away from 0 (tn_round: to even) */
/* Division that rounds down: tn_mod is its rest. Integers give 0 for y = 0, floats x / y. */
TN_API tn_tensor tn_floor_div(tn_tensor x, tn_tensor y);
/* The rest of a division that rounds towards 0, with the sign of x, as C has it. Integers give 0 for y = 0. */
TN_API tn_tensor tn_fmod(tn_tensor x, tn_tensor y);
TN_API tn_tensor tn_log10(tn_tensor x);
TN_API tn_tensor tn_erfinv(tn_tensor x); /* y with erf(y) = x; infinite at -1 and 1, with the gradient 0 there */
/* log(|gamma(x)|) and its derivative, computed in f64 and rounded to x's dtype: absolute error 1e-14 times the larger of 1 and
 * the result. Infinite at 0 and negative whole numbers. */
TN_API tn_tensor tn_lgamma(tn_tensor x);
TN_API tn_tensor tn_digamma(tn_tensor x);
TN_API tn_tensor tn_bit_not(tn_tensor x);  /* all bits of an integer turned; logical for bool */
TN_API tn_tensor tn_popcount(tn_tensor x); /* how many bits of an integer are set, in its dtype */
TN_API tn_tensor tn_clz(tn_tensor x);      /* zeros above the highest bit that is set, in its dtype; all bits for 0 */
TN_API tn_tensor tn_is_nan(tn_tensor x);   /* bool, as the next two; no integer is one of them, every integer is finite */
TN_API tn_tensor tn_is_inf(tn_tensor x);
TN_API tn_tensor tn_is_finite(tn_tensor x);
/* Elements (i, j) of the matrices of the last two axes stay where j - i <= diagonal (tril) or >= (triu); others become 0. */
TN_API tn_tensor tn_tril(tn_tensor x, int64_t diagonal);
TN_API tn_tensor tn_triu(tn_tensor x, int64_t diagonal);
/* i[..] -> t[..,depth]: 1 at the index, else 0; an index out of range gives zeros. */
TN_API tn_tensor tn_one_hot(tn_tensor index, int64_t depth, tn_dtype t);

/* Reductions over `axes` (negative counts from the end; TN_ALL_AXES = all). keep != 0 leaves the axes with size 1. */
TN_API tn_tensor tn_sum(tn_tensor x, const int64_t *axes, int n_axes, int keep);
TN_API tn_tensor tn_prod(tn_tensor x, const int64_t *axes, int n_axes, int keep);
TN_API tn_tensor tn_reduce_max(tn_tensor x, const int64_t *axes, int n_axes, int keep);
TN_API tn_tensor tn_reduce_min(tn_tensor x, const int64_t *axes, int n_axes, int keep);
TN_API tn_tensor tn_mean(tn_tensor x, const int64_t *axes, int n_axes, int keep);
TN_API tn_tensor tn_argmax(tn_tensor x, int axis, int keep); /* i64; the first index on ties; NaN counts as largest */
TN_API tn_tensor tn_argmin(tn_tensor x, int axis, int keep); /* i64; the first index on ties; NaN counts as smallest */

/* Order along an axis. Equal values keep their order; NaNs are the largest, -0 equals 0. Indices are i64. Gradients go where
 * the values came from; none goes through indices. Bitonic networks of min and max (Batcher 1968): n log(n)^2 / 2 exchanges of
 * vectors; n is the most that the axis may have where a run gives its size. tn_sort moves values without their positions, in
 * about half of the time: zeros of both signs may change places there, and a NaN may lose its sign and payload. */
TN_API tn_tensor tn_sort(tn_tensor x, int axis, int descending);
TN_API tn_tensor tn_argsort(tn_tensor x, int axis, int descending);
/* The k largest (or smallest), in order; out_index: where they stood (may be NULL). k, which may be a dim, is up to the size of
 * the axis, whatever that is. */
TN_API tn_tensor tn_top_k(tn_tensor x, int64_t k, int axis, int largest, tn_tensor *out_index);
/* x's entries at index along axis, for each place apart: y[i][j] = x[index[i][j]][j] for axis 0. index: i32 or i64, of x's
 * shape but along axis; clamped. What tn_argsort gives sorts x, or anything beside it. */
TN_API tn_tensor tn_take_along(tn_tensor x, tn_tensor index, int axis);

/* Movement: views, never copies by themselves. */
TN_API tn_tensor tn_reshape(tn_tensor x, tn_shape shape); /* one dim may be -1 */
TN_API tn_tensor tn_permute(tn_tensor x, const int64_t *perm, int n_perm);
TN_API tn_tensor tn_transpose(tn_tensor x, int axis_a, int axis_b);
TN_API tn_tensor tn_squeeze(tn_tensor x, const int64_t *axes, int n_axes); /* without these axes of size 1; all: TN_ALL_AXES */
TN_API tn_tensor tn_unsqueeze(tn_tensor x, const int64_t *axes, int n_axes); /* with axes of size 1, counted in the result */
TN_API tn_tensor tn_expand(tn_tensor x, tn_shape shape);                     /* broadcasts like NumPy */
/* before, after, start, stop, step: one entry an axis. A slice is start..stop-1 in steps of step; negative start and stop count
 * from the end, and 0 <= start <= stop <= size must hold. */
TN_API tn_tensor tn_pad(tn_tensor x, const int64_t *before, const int64_t *after, int n_axes, double value);
TN_API tn_tensor tn_slice(tn_tensor x, const int64_t *start, const int64_t *stop, const int64_t *step,
                          int n_axes); /* step NULL = 1; step > 0 */
#define TN_END INT64_MAX               /* a stop of tn_slice_axis: the end of the axis */
TN_API tn_tensor tn_slice_axis(tn_tensor x, int axis, int64_t start, int64_t stop, int64_t step); /* the other axes whole */
TN_API tn_tensor tn_flip(tn_tensor x, const int64_t *axes, int n_axes);
/* Sliding windows over `axes`: each axis of size d becomes (d - (size-1)*dilation - 1) / stride + 1 positions, and the
 * window offsets are appended as new last axes, in the order of `axes`. */
TN_API tn_tensor tn_window(tn_tensor x, const int64_t *axes, const int64_t *size, const int64_t *stride,
                           const int64_t *dilation, int n_axes);
/* The adjoint of tn_window: every window element is added back to where it came from, in a tensor of the given shape, whose
 * windows x has the shape of. */
TN_API tn_tensor tn_fold(tn_tensor x, const int64_t *axes, const int64_t *size, const int64_t *stride, const int64_t *dilation,
                         int n_axes, tn_shape shape);
TN_API tn_tensor tn_concat(const tn_tensor *xs, int n, int axis);

/* Contraction: out = batch axes, free axes of a, free axes of b. Accumulates in f32 for f16 and bf16. */
TN_API tn_tensor tn_dot(tn_tensor a, tn_tensor b, const int64_t *batch_a, const int64_t *batch_b, int n_batch,
                        const int64_t *contract_a, const int64_t *contract_b, int n_contract);
TN_API tn_tensor tn_matmul(tn_tensor a, tn_tensor b); /* NumPy's matmul for rank >= 1, leading axes broadcast */
/* Einstein summation: tn_einsum("bij,bjk->bik", (tn_tensor[]){ a, b }, 2). A letter names an axis; operands that share one are
 * multiplied along it, and what the result does not name is summed over. "..." stands for any number of leading axes that
 * broadcast; sizes of 1 stretch; a letter twice in one term takes the diagonal. Without "->" the result has the axes of "...",
 * then the letters that stand once, in the order of the alphabet (upper case first). More than two operands (up to 64) are
 * contracted in the order of least work: found exactly for up to 8, pair by pair beyond. */
TN_API tn_tensor tn_einsum(const char *spec, const tn_tensor *xs, int n);

/* out[.., i.., ..] = x[.., index[i..], ..] along axis; an index out of range is clamped. index is i32 or i64. */
TN_API tn_tensor tn_gather(tn_tensor x, tn_tensor index, int axis);
/* base with updates added at index along axis, in index order (deterministic); an index out of range is skipped. */
TN_API tn_tensor tn_scatter_add(tn_tensor base, tn_tensor index, tn_tensor updates, int axis);
/* base with updates f[.., i.., ..] written at index along axis, the last of several for one place; an index out of range is
 * skipped. A state that is assigned the result, and not read as it was afterwards, is written in place: only the updates move.
 */
TN_API tn_tensor tn_scatter_set(tn_tensor base, tn_tensor index, tn_tensor updates, int axis);
/* These and others by how they combine what is there with an update. Equal largest (or smallest) share their gradient. */
typedef enum { TN_SCATTER_ADD, TN_SCATTER_SET, TN_SCATTER_MUL, TN_SCATTER_MAX, TN_SCATTER_MIN } tn_scatter_mode;
TN_API tn_tensor tn_scatter(tn_tensor base, tn_tensor index, tn_tensor updates, int axis, tn_scatter_mode mode);

/* Control flow. A body builds what it computes from `in`, as any builder would, and writes its results to `out`; `ud` is the
 * caller's. It is called while its builder runs, once: in a graph it describes all iterations. It may use other tensors of the
 * graph as well, which come in by themselves, and make parameters of layers; what it makes can be used outside by way of its
 * results only. In an immediate graph bodies are called as often as they are executed, on values.
 *
 * Results are written to out (which may be NULL when there is one); each builder returns the first. A body whose results do not
 * match, a condition that is not bool[], and a tensor of a body that has been built are errors of the graph, as with any
 * builder. */
typedef void (*tn_body)(tn_graph *g, void *ud, const tn_tensor *in, tn_tensor *out);

/* The results of `then` when condition (bool[]) is true, else those of `otherwise`, of which one runs. Bodies have no `in`;
 * both give n_out results of equal types. */
TN_API tn_tensor tn_if(tn_tensor condition, tn_body then, tn_body otherwise, void *ud, tn_tensor *out, int n_out);
/* Begins with init[0..n); as long as condition gives true (its one result, bool[]), body gives the next values, of the same
 * types. most > 0: ends after so many iterations at the latest; gradients flow through such a loop only. Without a bound an
 * immediate graph keeps no values of iterations but the results. */
TN_API tn_tensor tn_while(tn_graph *g, const tn_tensor *init, int n, tn_body condition, tn_body body, void *ud, int64_t most,
                          tn_tensor *out);

typedef struct {
    const tn_tensor *carry; /* [n_carry] what iterations hand on */
    int n_carry;
    const tn_tensor *xs; /* [n_xs] stacks [length, ...]: iteration t gets slice t */
    int n_xs;
    int n_ys;        /* stacked results */
    int64_t length;  /* of all stacks; 0: that of xs */
    tn_tensor count; /* i64[]: so many iterations, from 0 to length; { 0 }: length */
    int reverse;     /* iterations begin at slice count - 1 and end at slice 0 */
    int recompute; /* gradients compute again what they need of an iteration, from what it began with, instead of keeping it */
} tn_scan_opts;
/* The body gets `in` = carry, then a slice of each of xs; it gives what is carried on, then a slice of each stacked result.
 * Results: what is carried at last, then stacks [length, ...] of slices, zeros where no iteration was. An iteration takes time
 * in proportion to its slices. */
TN_API tn_tensor tn_scan(tn_graph *g, const tn_scan_opts *opts, tn_body body, void *ud, tn_tensor *out);

/* A body that is called many times: it is built once, on operands of the types of like[0..n), and gives n_out results. The
 * graph owns the function. What the body takes from outside, such as parameters of layers it makes, all calls share. NULL after
 * an error. */
typedef struct tn_function tn_function;
TN_API tn_function *tn_function_new(tn_graph *g, const tn_tensor *like, int n, tn_body body, void *ud, int n_out);
/* The function of in[0..n). A call may stand in any body, its own operands from calls before it; gradients flow through it.
 * Graphs have the function's ops once a call; kernels that are alike have code once. Immediate graphs call the body. */
TN_API tn_tensor tn_call(tn_graph *g, const tn_function *f, const tn_tensor *in, tn_tensor *out);

/* body(g, ud, in, out) once, as part of the graph, whose values gradients compute again instead of keeping them from the first
 * time: what tn_grad needs of them it makes from what the body reads of outside, as late as it can. So a run holds less at once
 * and takes longer, by the body's work at most; gradients are those without, within rounding. A body inside of a body belongs
 * to the outer one; inside of loops see tn_scan_opts.recompute. The body may make parameters; it writes its results to out. */
TN_API void tn_checkpoint(tn_graph *g, tn_body body, void *ud, const tn_tensor *in, tn_tensor *out);

/* An attribute of tn_op. A list of whole numbers is (ints, n); one whole number, a bool and a dtype are lists of one. */
typedef struct {
    const char *name;
    const int64_t *ints;
    int n;
    double number; /* instead, where the attribute is a number, such as the value of pad */
} tn_attr;
/* The builder of any op by its name, for importers and bindings: tn_op(g, "sum", &x, 1, attrs, 2) with the attributes axes and
 * keep is tn_sum. `tenon ops NAME` lists an op's operands and attributes. Ops that need more than that, such as inputs, states
 * and constants, have builders of their own only. */
TN_API tn_tensor tn_op(tn_graph *g, const char *name, const tn_tensor *inputs, int n_inputs, const tn_attr *attrs, int n_attrs);

/* Gradients of the scalar `loss` with respect to xs[0..n): new tensors of the same graph, written to out. Can be applied again
 * to its own results. What is constant almost everywhere has the derivative 0: comparisons and casts of them, rounding, sign,
 * casts to integers. An op without a derivative on the way is an error that names it (and, as with builders, stays with the
 * graph): a tn_while without a bound, and a position (tn_argmax, tn_argmin) that is cast to float; as an index it chooses whose
 * gradient flows. The gradient of a tn_scan is one in the other direction; what it needs of the iterations, they keep: results
 * of contractions and reductions, and what each began with; elementwise work it does again. */
TN_API TN_CHECK tn_status tn_grad(tn_tensor loss /* f[] */, const tn_tensor *xs, int n, tn_tensor *out);

/* ---- compiling ----------------------------------------------------------------------------------------------------------- */

/* The modes compute the same graph and agree within rounding, not in every bit: fusion and graph passes may add in another
 * order, and round a product and the sum that it goes into once instead of twice. Each value, computed from the operands of its
 * run, is within a bound of its op in double precision: for elementwise ops by the units of src/ir/ops.def, for sums and
 * contractions in proportion to the number of terms and the sum of their absolute values (tn_ir_compare, `tenon verify`). A
 * program gives the same bits in every run and, on the CPU, for any number of threads. */
typedef enum {
    TN_MODE_IMMEDIATE, /* one program and one run per op; with .no_cache each is compiled again every time ("naive") */
    TN_MODE_GRAPH,     /* the whole graph, one kernel per op, queued at once */
    TN_MODE_COMPILED,  /* fused and memory-planned: one function */
    TN_MODE_LOOP       /* compiled, N steps in one call (tn_run_n) */
} tn_mode;

typedef struct {
    size_t struct_size;
    tn_mode mode;  /* use TN_COMPILE_DEFAULTS to start from */
    int fusion;    /* 0..3; -1 = the mode's own: 0 for immediate and graph, 3 for compiled and loop */
    int threads;   /* of the CPU, at most; 0 = as many as the process may use (affinity mask, control groups) and start */
    int no_cache;  /* compile every kernel again, for measuring */
    int no_passes; /* skip graph passes, for measuring and tests */
    int check;     /* verify every artefact between stages (slow) */
    const char
        *device; /* "cpu" (default), "cuda", "opencl", "null", or "auto": where a run should take least, by a model; the
                    text "explain" says why. "null-cuda", "null-opencl": texts for a GPU as most are, where there is none */
    /* How kernels run, by name: "schedule @dot_3 { hoist; vectorize i1 16; tile }", as tn_program_text(p,
     * "schedule") has it. Kernels that it does not name run as the recipes say; NULL (default): all do. TN_ERR_INVAL where a
     * step is not possible: the message says which, and why. The text is not needed after tn_compile. */
    const char *schedule;
    /* Bytes that the program and a session of it may have: temporaries, states and constants; inputs and outputs are the
     * caller's. Where it needs more, it keeps fewer values and computes them again for those that read them late, such as
     * gradients: those first that cost the least time a byte. The text "explain" says how many, and what they cost.
     * TN_ERR_NOMEM with what it needs where that does not suffice. 0 (default): no limit. */
    uint64_t memory_limit;
    /* 1: states and constants lie as their values do, also where a CPU would read them faster in another order, unless that is
     * the same for any number of rows (numbers of 4 and 8 bits, [out,in]): for sessions that share states with those of other
     * programs. */
    int no_panels;
} tn_compile_opts;
#define TN_COMPILE_DEFAULTS                                                                                                    \
    TN_VALUE_(tn_compile_opts, sizeof(tn_compile_opts), TN_MODE_COMPILED, -1, 0, 0, 0, 0, "cpu", NULL, 0, 0)

typedef struct tn_program tn_program;
typedef struct tn_session tn_session;

/* opts NULL = TN_COMPILE_DEFAULTS. The program does not refer to the graph afterwards. */
TN_API TN_CHECK tn_status tn_compile(tn_graph *g, const tn_compile_opts *opts, tn_program **out_program);
TN_API void tn_program_free(tn_program *p); /* after its sessions; NULL is fine */

typedef struct {
    int kernels;          /* kernels launched a run */
    int distinct_kernels; /* different pieces of code among them */
    uint64_t bytes_read;  /* bytes a run must read from and write to memory, counted at kernel borders */
    uint64_t bytes_written;
    uint64_t flops;       /* arithmetic of one run */
    uint64_t arena_bytes; /* peak of planned temporary memory, known before the run */
    uint64_t arena_bound; /* lower bound of it: the largest sum of simultaneously live temporaries */
    uint64_t state_bytes;
    double compile_seconds; /* wall time of tn_compile, of which */
    double build_seconds;   /* ... was spent in the code generator's back end (the C compiler or the cache) */
    int cache_hits, cache_misses;
    int threads;
} tn_program_stats;
TN_API void tn_program_get_stats(const tn_program *p, tn_program_stats *out);

/* A compiled program as a file: machine code, constants as kernels read them, initial values of states, names and shapes. Saved
 * is a program for the device cpu in machine code, in any mode but immediate; others are TN_ERR_UNSUPPORTED. The file takes the
 * place of one of that name when all of it is written. */
TN_API TN_CHECK tn_status tn_program_save(const tn_program *p, const char *path);
/* Reads it without compiling. Constants are not copied: the file is mapped, and must stay as it is until tn_program_free (who
 * makes it shorter ends the process with SIGBUS). The program runs as the one that was saved; what explains or changes a
 * program (tn_program_text, tn_program_export, profiles, saving it again) is TN_ERR_UNSUPPORTED. So is a file of another build
 * of the library, for another processor or another number of threads; a damaged file is TN_ERR_PARSE. A checksum covers all but
 * constants and values, against accidents only: a file's code is run, so trust it as you would a shared library. */
TN_API TN_CHECK tn_status tn_program_load(tn_ctx *ctx, const char *path, tn_program **out_program);

/* The same in the directory of the kernel cache, whose bound they share: key is any text that says of what the program was
 * compiled, and how; files[n_files] (absolute paths) are those that it was made of. TN_ERR_UNSUPPORTED where it is not kept:
 * there is no such directory, the program takes more than half of the bound or is none that tn_program_save takes, or a file
 * changed after the context was made, so that it may say something else by now. */
TN_API TN_CHECK tn_status tn_program_keep(const tn_program *p, const char *key, const char *const *files, int n_files);
/* The program that was kept under that key, or *out_program is NULL: there is none, it is for something else (as for
 * tn_program_load), a file of it has changed since (by size, times and inode), or tuning has found other schedules. Nobody
 * waits until the disk has what is kept: the first to load it after the machine's start sums all of it. */
TN_API TN_CHECK tn_status tn_program_find(tn_ctx *ctx, const char *key, tn_program **out_program);

/* Texts of the stages, for people and tools: "graph" (as compiled), "plan", "deps" (what each launch comes after, by data or
 * control), "scalar" (kernels as they are before their schedules), "schedule", "kernels", "c", "x86" (a listing of machine
 * code), "opencl" and "cuda" (programs for GPUs), "standalone" (the C file of tn_program_export as it is by default),
 * "explain", "explain.json", "explain.short.json" (sums and the dearest kernels), "passes.json" (what each pass of the graph
 * changed). Free with tn_string_free. */
TN_API TN_CHECK tn_status tn_program_text(const tn_program *p, const char *stage, char **out_text);

/* ---- export -------------------------------------------------------------------------------------------------------------- */

/* A program as C99 that a host program is linked with, without Tenon: no library but libm, no allocation, nothing static but
 * constant data. Temporaries, states and weights are in memory that the host hands over, of sizes that its header has as
 * constants. What the functions do stands in that header; the comment at the head of the C text has a program that calls them.
 * Symbolic dims stay open: each call gives their sizes. */
typedef struct {
    size_t struct_size;
    const char *name;    /* that all names begin with: letters, digits and _; NULL = the graph's */
    const char *weights; /* what the file of constant data is called, which is then a part of its own; NULL = in the C text,
                            up to four million numbers */
    const char *header;  /* what the file of the header is called; NULL = the C text is its own header */
    const char *cpu;    /* whose vectors the text has: "native" (NULL), "avx512", "avx2", "sse2", "neon", or "scalar": none, for
                           any compiler of C99. Of "cuda": "sm_80" (NULL), "sm_90". Of "opencl": NULL */
    int threads;        /* that the host may run a call on, by a function that it gives; 0 or 1 = the caller's alone */
    int train;          /* 1 = with functions that run many steps, and save and load states; TN_ERR_INVAL where none changes */
    int freestanding;   /* 1 = without the C library and libm */
    const char *target; /* "c" (NULL), or "object": machine code for x86-64 in an object of ELF, which no compiler makes; what
                           its header has under NAME_IMPLEMENTATION is compiled with the host; "library": that object as a
                           static library; "cuda" or "opencl": kernels for GPUs and the host's part that launches them, which
                           needs CUDA's runtime (a .cu file, by nvcc) or OpenCL 1.2 (C99);
                           "wasm": C as with freestanding, and functions that a page calls */
} tn_export_opts;
#define TN_EXPORT_DEFAULTS TN_VALUE_(tn_export_opts, sizeof(tn_export_opts), NULL, NULL, NULL, NULL, 0, 0, 0, NULL)
typedef struct tn_export tn_export;
typedef enum { TN_EXPORT_CODE, TN_EXPORT_HEADER, TN_EXPORT_WEIGHTS } tn_export_part;
/* opts NULL = TN_EXPORT_DEFAULTS. Of a program for the CPU; "cuda" and "opencl" also of others. Safe: any thread may export a
 * shared program. */
TN_API TN_CHECK tn_status tn_program_export(const tn_program *p, const tn_export_opts *opts, tn_export **out);
/* Bytes of a part, texts with a 0 behind them; NULL where there is none. They live as long as x. */
TN_API const void *tn_export_data(const tn_export *x, tn_export_part part, size_t *out_size);
TN_API void tn_export_free(tn_export *x); /* NULL is fine */

/* ---- tuning -------------------------------------------------------------------------------------------------------------- */

/* Recipes write a schedule for each kernel: tiles, panels, threads. Tuning searches for faster ones for a graph's kernels and
 * keeps them beside the kernel cache (tn_config.cache_dir; without one, in the context): every later compilation of such a
 * kernel, of whatever graph and process, uses them. Results have the same bits whatever was kept. */
typedef struct {
    size_t struct_size;
    double seconds;                                             /* to spend on measuring; 0 = 10 */
    int dry_run;                                                /* 1 = nothing is kept */
    int (*progress)(void *ud, double done, const char *kernel); /* done: 0 to 1. Not 0 returned = enough, keep what was found */
    void *progress_ud;
} tn_tune_opts;
typedef struct {
    const char *name;           /* of the kernel; lives as long as the report, like choice */
    int launches;               /* of this code in a run */
    int candidates;             /* schedules that were measured, beside the recipe's */
    int changed;                /* 1 = one of them is faster */
    double before_us, after_us; /* of one launch on its own, as the recipe has it and as it is now; 0 = not measured */
    const char *schedule;       /* what its schedule changes about the recipe's: steps, and "no" before those that went */
    double flops;               /* of one launch */
} tn_tuned_kernel;
typedef struct {
    const char *schedule, *form; /* as in tn_tuned_kernel, and what the kernel is like then; live as long as the report */
    double us;                   /* of one launch, the best of some */
    int model, taken;            /* 1 = as the recipe has it; 1 = as the kernel is now */
} tn_tuned_variant;
typedef struct {
    int kernels, changed;       /* different kernels; those that became faster */
    int kept;                   /* 1 = schedules were kept: in the context, and in the database where there is one */
    double seconds;             /* spent */
    double before_us, after_us; /* of a whole run, measured in turns */
} tn_tuning_summary;
typedef struct tn_tuning tn_tuning; /* a report */

/* Not in immediate mode, nor for the devices "auto" and "null", nor from a schedule given by hand (TN_ERR_UNSUPPORTED). opts
 * and tune NULL = defaults. Use it while the machine does nothing else. TN_ERR_INTERNAL when two schedules disagree in any bit.
 */
TN_API TN_CHECK tn_status tn_tune(tn_graph *g, const tn_compile_opts *opts, const tn_tune_opts *tune, tn_tuning **out_report);
TN_API void tn_tuning_free(tn_tuning *t); /* NULL is fine */
TN_API void tn_tuning_get_summary(const tn_tuning *t, tn_tuning_summary *out);
TN_API TN_CHECK tn_status tn_tuning_kernel(const tn_tuning *t, int i, tn_tuned_kernel *out); /* i: 0 to kernels - 1 */
/* Everything that was measured of a kernel, the fastest first: 0 to its candidates, for the recipe's is one more. */
TN_API TN_CHECK tn_status tn_tuning_variant(const tn_tuning *t, int which, int i, tn_tuned_variant *out);

/* ---- running ------------------------------------------------------------------------------------------------------------- */

/* States that no run changes, such as the parameters of a program without training, are held once: sessions read those of
 * their program, until one sets such a state. */
TN_API TN_CHECK tn_status tn_session_new(tn_program *p, tn_session **out_session);
/* A session that reads the states no run changes where `from` has them, instead of its own, and takes no memory for them:
 * `from` is of the same or of another program of its context and device, whose states of that kind are the same, in the same
 * order. TN_ERR_UNSUPPORTED where they lie otherwise (no_panels of tn_compile_opts) or `from` has none of its own
 * (tn_session_set). Then as after tn_session_share_states; but states that `p` does not read, and that lie in another order as
 * `from` reads them, are not given out (tn_session_get: TN_ERR_UNSUPPORTED). */
TN_API TN_CHECK tn_status tn_session_new_sharing(tn_program *p, const tn_session *from, tn_session **out_session);
TN_API void tn_session_free(tn_session *s);
/* Text of the session's last error. On the context's thread (see the head of this file) tn_ctx_error has it too. Valid until
 * the session's next call. Never NULL. */
TN_API const char *tn_session_error(const tn_session *s);
/* The program's figures; in immediate mode those of the last run (its ops are compiled when they are first met). */
TN_API void tn_session_get_stats(const tn_session *s, tn_program_stats *out);

/* Where a run reads and writes. What a call of tn_run or tn_run_n binds is for that call alone. What tn_session_bind binds
 * stays until it is bound elsewhere or unbound, and every run uses it, but for the slots that the call itself binds. So no run
 * touches memory that an earlier call of tn_run or tn_run_n was given. Every input must be bound; an output that is not bound
 * is dropped. An output must not overlap an input or another output: TN_ERR_INVAL, as for a name that a call binds twice. */
typedef struct {
    const char *name;
    void *data; /* row-major. Inputs are read from and outputs written to here during the run */
} tn_binding;
#define TN_BIND(...) TN_LIST_(tn_binding, __VA_ARGS__), TN_COUNT_(tn_binding, __VA_ARGS__)

/* Values of a program's symbolic dims (tn_dim), for all runs until they are given again; a run without them is an error, as is
 * a value outside of its dim's range. tn_bind_shape takes them from the shape of an input or output: each axis must be what it
 * is for them. Nothing is allocated or compiled. tn_session_shape: the shape of a slot for these values. */
TN_API TN_CHECK tn_status tn_bind_dim(tn_session *s, const char *name, int64_t value);
TN_API TN_CHECK tn_status tn_bind_shape(tn_session *s, const char *name, tn_shape shape);
TN_API TN_CHECK tn_status tn_session_shape(const tn_session *s, int slot, tn_shape *out);
TN_API int tn_program_n_dims(const tn_program *p);
TN_API TN_CHECK tn_status tn_program_dim(const tn_program *p, int i, const char **out_name, int64_t *out_lo, int64_t *out_hi,
                                         int64_t *out_multiple_of); /* each may be NULL */

/* Runs the program once. Names are looked up here; for the tightest loop resolve them once with tn_session_slot and use
 * tn_session_bind and tn_session_run: those allocate nothing, lock nothing and make no system call on the CPU. */
TN_API TN_CHECK tn_status tn_run(tn_session *s, const tn_binding *bindings, int n);

/* Index of a named input or output, or -1. */
TN_API int tn_session_slot(const tn_session *s, const char *name);
TN_API TN_CHECK tn_status tn_session_bind(tn_session *s, int slot, void *data); /* data NULL = unbind */
TN_API TN_CHECK tn_status tn_session_run(tn_session *s);                        /* with what tn_session_bind bound */

/* Has every run read or write a slot in memory that the caller owns on the program's device, `bytes` of it, at least what the
 * slot has: nothing is copied to or from the host. As tn_session_bind, whose place it takes: it stays until the slot is bound
 * elsewhere or unbound (data 0), and a call that names the slot hides it for its run. The address is a multiple of 16. On
 * "cuda" it is a CUdeviceptr of the GPU tn_program_ordinal in its primary context, as cudaMalloc, CuPy and PyTorch have it; on
 * "cpu" and "null" an address of the host. TN_ERR_UNSUPPORTED on "opencl", whose memory belongs to a context of the library's
 * own, and in immediate mode on devices with memory of their own. What writes the memory must be done before tn_session_run or
 * tn_run. */
TN_API TN_CHECK tn_status tn_session_bind_device(tn_session *s, int slot, uint64_t data, size_t bytes);
/* As tn_session_run, but in order with a stream of the caller's, and without waiting: the run begins when what was queued there
 * so far is done, and what is queued there from now on waits for it. stream: on "cuda" a CUstream or cudaStream_t (0: the
 * default stream); elsewhere 0, and the run is done when the call returns. Inputs bound by tn_session_bind have been read when
 * it returns; outputs must be bound by tn_session_bind_device, or not at all, where the device has memory of its own. A fault
 * of the device may be the error of a later call. */
TN_API TN_CHECK tn_status tn_session_queue(tn_session *s, uint64_t stream);
/* The number of the program's GPU as its driver counts; 0 on other devices. */
TN_API int tn_program_ordinal(const tn_program *p);

/* Runs n steps in one call: step i reads input k from ring[k] + (i % n_ring) * bytes of the input. Inputs bound by
 * tn_session_bind alone are the same in every step. Outputs hold the last step's values, or, when bound with
 * tn_session_bind_trace, step i writes its own at data + i * bytes. */
TN_API TN_CHECK tn_status tn_run_n(tn_session *s, int64_t n_steps, const tn_binding *rings, int n_rings, int64_t n_ring);
/* The same, but step i reads entry (first + i) % n_ring: a ring goes on where a call before has left it. first: 0 .. n_ring -
 * 1; without rings it says nothing. */
TN_API TN_CHECK tn_status tn_run_n_from(tn_session *s, int64_t n_steps, const tn_binding *rings, int n_rings, int64_t n_ring,
                                        int64_t first);
/* As tn_session_bind; room for n_steps steps. A run of one step writes at data. */
TN_API TN_CHECK tn_status tn_session_bind_trace(tn_session *s, int slot, void *data, int64_t n_steps);

/* tn_run_n, and when what of it happened, where devices with memory of their own tell it (CUDA; elsewhere: TN_ERR_UNSUPPORTED):
 * uploads run beside earlier steps when rings are large. The first `cap` spans are written; *out_n is how many. */
typedef struct {
    const char *what; /* "fill": the host copies to where the device reads; "upload", "download"; "run": some of the steps */
    uint64_t bytes;
    double begin_us, end_us; /* from the begin of the call; clocks of host and device agree within some 10 us */
} tn_span;
TN_API TN_CHECK tn_status tn_run_n_spans(tn_session *s, int64_t n_steps, const tn_binding *rings, int n_rings, int64_t n_ring,
                                         tn_span *out, int cap, int *out_n);

/* State by name: parameters, moments, counters. */
TN_API int tn_session_n_states(const tn_session *s);
TN_API TN_CHECK tn_status tn_session_state(const tn_session *s, int i, const char **out_name, tn_dtype *out_dtype,
                                           tn_shape *out_shape);
TN_API TN_CHECK tn_status tn_session_get(tn_session *s, const char *state, void *data, size_t bytes);
/* Other sessions keep their values. The first time that a session sets a state which no run changes, it takes memory for all
 * such states (in immediate mode on the CPU: for that state). */
TN_API TN_CHECK tn_status tn_session_set(tn_session *s, const char *state, const void *data, size_t bytes);
/* All states at once: values[i] for state i of tn_session_state, as many bytes as it has (NULL where that is none). All are
 * set, or, where memory runs out, none. */
TN_API TN_CHECK tn_status tn_session_set_states(tn_session *s, const void *const *values);
/* Copies every state of `from` that `to` has under the same name, shape and dtype; the number copied is written to out_n (may
 * be NULL). */
TN_API TN_CHECK tn_status tn_session_copy_state(tn_session *to, const tn_session *from, int *out_n);
/* From its next run on `to` reads the states that no run changes where `from` has them: nothing is copied, and nothing is
 * allocated. Both are sessions of one program. When one of them sets such a state later, it has its own from then on, and the
 * other one keeps its values; freeing `from` is fine. So a new set of weights goes to many sessions at once: copy it into one
 * session, and let each of the others share it between two runs. Not in mode immediate: TN_ERR_UNSUPPORTED. */
TN_API TN_CHECK tn_status tn_session_share_states(tn_session *to, const tn_session *from);

/* Inputs and outputs of a program, in declaration order. kind: 'i' input, 'o' output. */
TN_API int tn_program_n_slots(const tn_program *p);
TN_API TN_CHECK tn_status tn_program_slot(const tn_program *p, int slot, char *out_kind, const char **out_name,
                                          tn_dtype *out_dtype, tn_shape *out_shape);

/* ---- profiling ----------------------------------------------------------------------------------------------------------- */

/* Where the time of a run goes, kernel by kernel: clocks of the device on GPUs, the host's on the CPU. A round runs the program
 * as usual and then once more with a clock round every kernel. */
typedef struct {
    const char *name;    /* lives as long as the program; kernel i is kernel i of the text "explain" */
    int parallel;        /* 1 = several threads (CPU) or groups (GPU) share it */
    int64_t grid_blocks; /* GPU: of .group threads; CPU: 0 */
    int block_threads;
    uint64_t bytes_read; /* compulsory traffic at its border */
    uint64_t bytes_written;
    uint64_t flops;
    double median_us, best_us;
    double begin_us, end_us;     /* in the last round, from the begin of its first kernel */
    double predicted_us;         /* what the cost model says of a kernel that runs again and again in its program .. */
    const char *predicted_bound; /* .. and what keeps it so long: "arithmetic", "memory" ... */
    double
        level_bytes[4]; /* that it moves by the model: registers and first cache, .. and second, .. and last, .. and memory */
} tn_profiled_kernel;
typedef struct {
    int kernels, rounds;
    double run_us;     /* median of a whole run as usual, with what devices with memory of their own have to transfer */
    double kernels_us; /* sum of the kernels' medians */
} tn_profile_summary;
typedef struct tn_profile tn_profile;

/* Measures for so many seconds, at least five rounds. Inputs must be bound by tn_session_bind; states move on with every run. A
 * kernel that takes less than a few microseconds is measured with the clock's own time (CPU: about 0.05 us, fork and join of
 * threads included; GPU: about 3 us). Not in mode immediate: TN_ERR_UNSUPPORTED. The profile must not outlive the program. */
TN_API TN_CHECK tn_status tn_session_profile(tn_session *s, double seconds, tn_profile **out_profile);
/* The same, but in a round with clocks each kernel runs again and again, for `each` seconds (above 0, to 1) or 256 times,
 * before the next one does: its time is their mean, which what a clock costs is hardly part of. Kernels that work in place do
 * it as often. predicted_us is then of a kernel that runs again and again by itself. */
TN_API TN_CHECK tn_status tn_session_profile_repeated(tn_session *s, double seconds, double each, tn_profile **out_profile);
TN_API void tn_profile_free(tn_profile *p); /* NULL is fine */
TN_API void tn_profile_get_summary(const tn_profile *p, tn_profile_summary *out);
TN_API TN_CHECK tn_status tn_profile_kernel(const tn_profile *p, int i, tn_profiled_kernel *out); /* i: 0 to kernels - 1 */

#if !defined(TN_NO_LOCATIONS)
#include "tenon_locations.h"
#endif

#ifdef __cplusplus
}
#endif
#endif
