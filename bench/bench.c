/* bench.c - `tenon bench`: which benchmark, and the options of all of them. */
#include "bench.h"

#include <string.h>

static int machine(cli *c) {
    ceiling m = ceiling_measure((int)cli_int(c, "threads", 0, 0, 256));
    if (!c->json) {
        ceiling_print(stdout, &m);
        return CLI_OK;
    }
    json j = json_begin(stdout, "bench machine");
    ceiling_json(&j, &m);
    json_array(&j, "rows");
    json_end(&j);
    json_finish(&j);
    return CLI_OK;
}

/* Options that some benchmarks have; the others would ignore them. */
static const struct {
    const char *option, *only, *but; /* only these have it, or all but these */
} belongs[] = {
    { "depths", "modes", NULL },
    { "modes", "modes", NULL },
    { "cache", "modes", NULL },
    { "dtype", "gemm models", NULL },
    { "trans", "gemm", NULL },
    { "bins", "ladder", NULL },
    { "functions", "ulp", NULL },
    { "all", "ulp", NULL },
    { "samples", "ulp model dynamic bytes", NULL },
    { "large", "model", NULL },
    { "largest", "memory dynamic", NULL },
    { "schedule", "gemm conv rows", NULL },
    { "steps", "rnn", NULL },
    { "layers", "rnn", NULL },
    { "cases", NULL, "modes ladder exp ulp machine models bytes" },
};

static bool has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
    return false;
}

static void check_options(const cli *c, const char *what) {
    for (size_t i = 0; i < COUNT_OF(belongs); i++) {
        const char *only = belongs[i].only, *but = belongs[i].but;
        if (!cli_flag(c, belongs[i].option) || (only ? has_word(only, what) : !has_word(but, what))) continue;
        cli_usage(c, "bench %s has no option --%s: %s %s", what, belongs[i].option, only ? "it is of bench" : "all have it but",
                  only ? only : but);
    }
}

static int run(cli *c) {
    const char *what = c->args[0];
    check_options(c, what);
    if (!strcmp(what, "models")) return bench_models(c);
    if (c->n_args > 2) cli_usage(c, "one argument too many: %s", c->args[2]);
    if (!strcmp(what, "ladder")) return bench_ladder(c, c->n_args > 1 ? c->args[1] : "matmul");
    if (!strcmp(what, "exp")) return bench_exp(c, c->n_args > 1 ? c->args[1] : "write-vs-move");
    if (c->n_args > 1) cli_usage(c, "one argument too many: %s", c->args[1]);
    if (!strcmp(what, "modes")) return bench_modes(c);
    if (!strcmp(what, "gemm")) return bench_gemm(c);
    if (!strcmp(what, "conv")) return bench_conv(c);
    if (!strcmp(what, "rows")) return bench_rows(c);
    if (!strcmp(what, "train")) return bench_train(c);
    if (!strcmp(what, "compile")) return bench_compile(c);
    if (!strcmp(what, "contention")) return bench_contention(c);
    if (!strcmp(what, "memory")) return strcmp(cli_device(c), "cpu") ? bench_device_memory(c) : bench_memory(c);
    if (!strcmp(what, "ulp")) return bench_ulp(c);
    if (!strcmp(what, "sum")) return bench_sum(c);
    if (!strcmp(what, "control")) return bench_control(c);
    if (!strcmp(what, "dynamic")) return bench_dynamic(c);
    if (!strcmp(what, "rnn")) return bench_rnn(c);
    if (!strcmp(what, "sort")) return bench_sort(c);
    if (!strcmp(what, "concat")) return bench_concat(c);
    if (!strcmp(what, "sparse")) return bench_sparse(c);
    if (!strcmp(what, "serve")) return bench_serve(c);
    if (!strcmp(what, "ir")) return bench_ir(c);
    if (!strcmp(what, "machine")) return machine(c);
    if (!strcmp(what, "model")) return bench_model(c);
    if (!strcmp(what, "bytes")) return bench_bytes(c);
    cli_usage(c,
              "there is no benchmark %s (modes, ladder, gemm, conv, rows, train, compile, contention, memory, exp, ulp, sum, "
              "control, "
              "dynamic, rnn, sort, concat, sparse, serve, ir, machine, model, models, bytes)",
              what);
}

static const cli_option options[] = {
    { "depths", 0, "LIST", "modes: nodes of the network (default 64)" },
    { "sizes", 's', "LIST",
      "widths or matrix sizes: 16,64 or 4-256*2 (defaults: modes 4-256*2, ladder 64-1024*2, compile 16,64,256, contention "
      "64,256, the others "
      "their own)" },
    { "batch", 'b', "LIST", "modes: rows of the input, or `size` (default): as many as the width; train: images a step" },
    { "modes", 'm', "LIST", "modes: naive (immediate with the cache off),immediate,graph,compiled,loop (default all)" },
    { "fusion", 'f', "LIST",
      "modes: fusion levels of compiled and loop (default 0,3); ladder and others: of the compiled graph" },
    { "cache", 0, "LIST",
      "modes: on: compiled before the timer; off: every kernel compiled again inside it, in each run or call (default "
      "on,off)" },
    { "device", 'd', "NAME",
      "modes, ladder, gemm, conv, rows, train, compile, memory, exp, sum, control, dynamic, rnn, sort, concat, sparse: cpu "
      "(default), "
      "cuda or opencl" },
    { "dtype", 0, "NAME", "gemm: f32 (default), bf16, or i8: u8 times i8; models: f32, bf16 or f16" },
    { "trans", 0, "LIST", "gemm: nn (default), nt, tn, tt: whether x and w are given as their transposes" },
    { "bins", 0, "N", "ladder histogram: how many (default 64)" },
    { "threads", 't', "LIST", "CPU threads; 0 = all (default: modes 0, ladder 1; the others 1 and all, one after the other)" },
    { "cases", 0, "LIST",
      "gemm, conv, rows, train, compile, contention, memory: only cases whose name has one of these words in it" },
    { "schedule", 0, "FILE",
      "gemm, conv, rows: kernels that it names run as its steps say (rows `by hand`); where it is not possible, as the recipe "
      "has "
      "it" },
    { "rivals", 0, NULL, "time other programs in the same rounds (bench/rivals/setup installs them)" },
    { "rivals-only", 0, "LIST", "of ort, openvino, jax, torch, torch_compile, onednn, openblas, openmp, numpy" },
    { "rivals-dir", 0, "DIR", "where their programs are (default bench/rivals)" },
    { "seconds", 0, "S", "time for each row (default 0.3); at least two runs are made" },
    { "seed", 0, "N", "of weights and inputs (default 1)" },
    { "functions", 0, "LIST", "ulp: exp,log,... (default: all)" },
    { "all", 0, NULL, "ulp: all 2^32 arguments of functions of one" },
    { "large", 0, NULL, "model: also what takes a GPU longer than a launch (--device cuda does that anyway)" },
    { "samples", 0, "N",
      "ulp: so many arguments, or pairs of them (default 1048576); model: kernels of random graphs; "
      "dynamic: sizes (default 20)" },
    { "largest", 0, "MIB", "memory: the largest footprint (default 256; 0: 16 KiB); dynamic: the largest length" },
    { "steps", 0, "N", "rnn: the length of the sequences (default 128, training 64)" },
    { "layers", 0, "N", "rnn: 1 or 2 (default 1, training 2)" },
    { "csv", 0, "FILE", "write the rows as CSV too" },
    { "svg", 0, "FILE", "write a log-log plot too (--plot is the same)" },
    { "plot", 0, "FILE", "write a log-log plot too" },
    { "html", 0, "FILE", "write plot and rows as one page for a browser too" },
    { "plant-error", 0, NULL, "spoil one element of every result before it is checked: the command must fail" },
    { NULL, 0, NULL, NULL },
};

const cli_command command_bench = {
    "bench",
    "WHAT [WORK]",
    "measure: modes, ladder, gemm, conv, rows, train, compile, contention, memory, exp, ulp, sum, control, dynamic, rnn, "
    "sort, concat, sparse, serve, ir, machine, model, models, bytes",
    "modes     random networks of Linear and ReLU layers ending in softmax, run in every mode:\n"
    "          naive (each op compiled again every time), immediate (each op by itself), graph (queued at once),\n"
    "          compiled and loop (many steps in one call) at the fusion levels of --fusion; and the same with the kernel "
    "cache\n"
    "          off: then all kernels are compiled again in each run, or in each call of 100 steps of loop mode (fewer where "
    "they\n"
    "          take more than 2 s). With --device cuda or opencl each runs there and on the CPU; rows\n"
    "          `crossover` have the size from which the device stays faster.\n"
    "ladder    WORK = matmul, relu, softmax or fused: from the naive loop to generated code, GFLOP/s a rung. With --device\n"
    "          from the naive kernel, and of sum, transpose and histogram, too.\n"
    "gemm      relu(x w + b), cubes and thin shapes, the weights an input or a constant. With --dtype of narrow numbers, "
    "whose\n"
    "          sums are f32 or i32; peak_ratio is then against the fastest instruction for them.\n"
    "models    ONNX files or folders of them, with random inputs.\n"
    "conv      convolutions of well-known networks, forward and backward.\n"
    "rows      layer norm, softmax, a chain of ten ops, transpose, copy, against a copy of as many bytes.\n"
    "train     one training step of an MLP (SGD) and of the digits network (Adam), in loop mode.\n"
    "compile   from the first builder to ready, without a cache on disk. With --device: networks of depth 64 to a program of\n"
    "          an open device, the first of the process, without the cache, from the disk.\n"
    "contention  networks with one thread and with all: alone, beside a program that keeps a processor busy, and as 2 and 4\n"
    "          sessions at a time; with the time over one thread's, over the quiet one, and the throughput over one "
    "session's.\n"
    "memory    bandwidth and latency by footprint, the caches they show, access patterns, layouts, powers of two,\n"
    "          threads and barriers. With --device: the same of its levels, banks of shared memory, atomics, launches, and "
    "transfers.\n"
    "exp       WORK = write-vs-move or dot-sum-dot: two experiments on where results are written and what is never stored. "
    "With\n"
    "          --device the graphs run there; the plain C loops stay on the host (column device).\n"
    "ulp       the elementwise functions of f32: largest error in units of the last place over a sample of all arguments, or\n"
    "          all of them, and the time of 32768 values.\n"
    "sum       0.1 so many times, random and alternating numbers, by plain loops and graphs that round in different ways: the\n"
    "          error against the exact sum, its bound, and the time.\n"
    "control   loops of many short iterations, each beside a loop in C.\n"
    "dynamic   one program for a range of sizes beside programs for each.\n"
    "rnn       an LSTM forward and a training step of two layers.\n"
    "sort      top-k of long rows, a sorted array, running sums.\n"
    "concat    arrays side by side, chosen from, and backward.\n"
    "sparse    a sparse matrix by density, beside the dense product.\n"
    "serve     requests of many threads, one by one and gathered into batches.\n"
    "ir        random graphs built, printed, parsed back, checked and walked.\n"
    "model     the cost model against measured kernels of models and of --samples random graphs (default 200).\n"
    "bytes     the model's bytes from memory, against simulated caches.\n"
    "machine   the ceilings: multiply-add rate and copy bandwidth.\n\n"
    "The variants take turns (A B C A B C ...), and so do the ceilings; each is warmed up first. Times are medians of samples\n"
    "of at least 2 ms, with the 10th and 90th percentile and the best beside them. Every output is compared with "
    "doubles\n"
    "before and after the timing; a difference beyond err_bound ends with code 1.\n"
    "compile_us and transfer_us (parameters and input handed over once) are not in the times; only rows with cache `off`\n"
    "compile inside. docs/bench.md says what the columns are.\n\n"
    "examples:\n"
    "  tenon bench modes --depths 64 --sizes 16,64,256\n"
    "  tenon bench ladder matmul --sizes 256,1024 --svg ladder.svg\n"
    "  tenon bench gemm --threads 1 --rivals --csv gemm.csv\n"
    "  tenon bench rows --cases softmax,copy --json > rows.json\n",
    1,
    -1,
    options,
    run,
};
