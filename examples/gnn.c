/* gnn.c - a graph network says which section a Debian package is in, from words and from what it depends on. Messages are a
 * gather along the edges and a mean of each node's: over the whole graph at once, or, as graphs that are too large for that are
 * learnt, over a few neighbours that the loader draws for each node of a batch (GraphSAGE: Hamilton et al., NIPS 2017). Usage:
 * gnn [--json] [--steps N] [/var/lib/dpkg/status]   (or all of Debian: apt-cache dumpavail >all && gnn all) */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <tenon/tenon.h>
#include <tenon/tenon_data.h>
#include <tenon/tenon_index.h>
#include <tenon/tenon_io.h>
#include <tenon/tenon_nn.h>

enum {
    WORDS = 12 /* of a description */,
    TABLE = 4096,
    WIDTH = 32,
    CLASSES = 12,
    BATCH = 64,
    DRAWN = 4 /* neighbours */,
    EVERY = 10
};
static const char help[] = "usage: gnn [--json] [--steps N] [FILE]\n"
                           "Reads packages as dpkg and apt list them (default /var/lib/dpkg/status): the words of a package's "
                           "one-line description, what\n"
                           "it depends on, and its section, of which the 12 largest are told apart. Learns from every other "
                           "package, in N steps (default\n"
                           "300), and says how many of the rest are right: by the largest section, by words, by words and "
                           "messages of two steps along\n"
                           "dependencies, and by the same learnt from drawn neighbours.\n";
static tn_ctx *ctx;
static void check(tn_status code) {
    if (code) fprintf(stderr, "gnn: %s\n", tn_ctx_error(ctx)), exit(1);
}
static void *room(size_t n, size_t size) {
    void *p = calloc(n + 1, size);
    if (!p) fputs("gnn: out of memory\n", stderr), exit(1);
    return p;
}
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the graph: packages, and which needs which ---- */

typedef struct {
    char *name, *section, *needs, *more, *words; /* into the text; more: Pre-Depends */
} package;
static package *packages; /* [n], by name */
static int32_t n, n_edges, n_train;
static int32_t *needs, *needed; /* [n_edges]: package needs[e] needs package needed[e] */
static int32_t *begin[2],
    *end[2]; /* [n + 1], [n_edges]: ends of the edges of each, begin[] to begin[] of the next; 1: backwards */
static int32_t (*words)[WORDS]; /* [n + 1], hashed; 0: none */
static int32_t *label, *train;  /* [n]: the section, -1 for small ones; [n_train]: what is learnt from */

static int by_name(const void *a, const void *b) { return strcmp(((const package *)a)->name, ((const package *)b)->name); }
static void read_packages(char *text) {
    static const char *const fields[] = { "Package: ", "Section: ", "Depends: ", "Pre-Depends: ", "Description: " };
    packages = room(strlen(text) / 9, sizeof *packages);
    package p = { 0 };
    for (char *line = text, *next; line; line = next) {
        char **into[] = { &p.name, &p.section, &p.needs, &p.more, &p.words };
        if ((next = strchr(line, '\n'))) *next++ = 0;
        for (int f = 0; f < 5; f++)
            if (!strncmp(line, fields[f], strlen(fields[f]))) *into[f] = line + strlen(fields[f]);
        if (*line && next) continue;
        if (p.name && p.section) packages[n++] = p; /* an empty line ends a package */
        p = (package){ 0 };
    }
    if (n) qsort(packages, (size_t)n, sizeof *packages, by_name);
}
static void read_edges(int32_t from, const char *list) { /* "a (>= 1), b | c": of alternatives the first */
    for (const char *at = list; at && *at; at = strchr(at, ',')) {
        char name[128];
        size_t length = strcspn(at += strspn(at, ", "), " ,(:|");
        if (!length || length >= sizeof name) continue;
        memcpy(name, at, length), name[length] = 0;
        package *p = bsearch(&(package){ .name = name }, packages, (size_t)n, sizeof *packages, by_name);
        if (p && p - packages != from) needs[n_edges] = from, needed[n_edges++] = (int32_t)(p - packages);
    }
}
static void read_words(int32_t i, const char *at) {
    for (int k = 0; at && *at && k < WORDS; k++) {
        uint32_t hash = 2166136261u;
        while (*at && !isalnum((unsigned char)*at)) at++;
        if (!*at) return;
        for (; isalnum((unsigned char)*at); at++) hash = (hash ^ (uint32_t)tolower((unsigned char)*at)) * 16777619u;
        words[i][k] = 1 + (int32_t)(hash % (TABLE - 1));
    }
}
static void index_edges(int way, const int32_t *from, const int32_t *to) {
    int32_t *at = begin[way] = room((size_t)n + 1, sizeof *at);
    end[way] = room((size_t)n_edges, sizeof *at);
    for (int32_t e = 0; e < n_edges; e++) at[from[e] + 1]++;
    for (int32_t i = 0; i < n; i++) at[i + 1] += at[i];
    for (int32_t e = n_edges - 1; e >= 0; e--) end[way][--at[from[e] + 1]] = to[e]; /* at[i + 1]: now where those of i begin */
    memmove(at, at + 1, (size_t)n * sizeof *at), at[n] = n_edges;
}
/* Sections by size, the largest first, as labels 0 .. CLASSES - 1. Returns how many packages of the largest are asked for. */
static int read_sections(int *out_asked) {
    struct {
        const char *name;
        int count, place;
    } all[256];
    int kinds = 0, largest = 0, *kind = room((size_t)n, sizeof *kind);
    for (int32_t i = 0; i < n; i++) {
        const char *name = strrchr(packages[i].section, '/') ? strrchr(packages[i].section, '/') + 1 : packages[i].section;
        int k = 0;
        while (k < kinds && strcmp(all[k].name, name)) k++;
        if (k == kinds && kinds < 256) all[kinds].name = name, all[kinds].count = 0, all[kinds++].place = -1;
        kind[i] = k < 256 ? k : 255;
        all[kind[i]].count++;
    }
    for (int c = 0; c < CLASSES; c++) {
        int best = -1;
        for (int k = 0; k < kinds; k++)
            if (all[k].place < 0 && (best < 0 || all[k].count > all[best].count)) best = k;
        if (best >= 0) all[best].place = c;
    }
    for (int32_t i = 0; i < n; i++) {
        label[i] = all[kind[i]].place;
        if (label[i] < 0) continue;
        if ((uint32_t)i * 2654435761u >> 31)
            train[n_train++] = i;
        else
            ++*out_asked, largest += !label[i];
    }
    free(kind);
    return largest;
}

/* ---- the network ---- */

static tn_tensor of_words(tn_tensor w /* i32[..,WORDS] */) { /* f32[..,WIDTH] */
    tn_shape mask = tn_tensor_shape(w);
    mask.dim[mask.rank++] = 1;
    tn_tensor there = tn_reshape(tn_cast(tn_min_scalar(w, 1), TN_F32), mask);
    tn_tensor sum = tn_sum(tn_mul(tn_nn_embedding(w, TABLE, WIDTH, "word"), there), TN_INTS(-2), 0);
    return tn_relu(tn_nn_linear(sum, WIDTH, "words"));
}
/* What a node knows after a step: from what it knew, and the means of what those knew that it needs, and that need it. */
static tn_tensor step(tn_tensor own, tn_tensor needed_mean, tn_tensor needing_mean, int i) {
    tn_graph_push(own.graph, "step%d", i);
    tn_tensor h = tn_add(tn_nn_linear(own, WIDTH, "own"), tn_nn_linear_no_bias(needed_mean, WIDTH, "needed"));
    h = tn_relu(tn_add(h, tn_nn_linear_no_bias(needing_mean, WIDTH, "needing")));
    tn_graph_pop(own.graph);
    return h;
}
static tn_tensor scores(tn_tensor h, tn_tensor runs /* {0}: not training */) {
    if (runs.graph) h = tn_nn_dropout(h, 0.5, runs, "drop");
    return tn_nn_linear(h, CLASSES, "score");
}
static tn_tensor along_edges(tn_tensor h /* f32[n,WIDTH] */, tn_tensor from, tn_tensor to) { /* the mean at each node */
    return tn_segment_mean(tn_gather(h, from, 0), to, n);
}
static tn_tensor whole_graph(tn_graph *g, int messages, tn_tensor runs) { /* f32[n,CLASSES] */
    tn_tensor w = tn_input(g, "words", TN_I32, TN_DIMS(n + 1, WORDS)), h = of_words(tn_slice_axis(w, 0, 0, n, 1));
    if (messages) {
        tn_tensor a = tn_input(g, "needs", TN_I32, TN_DIMS(n_edges)), b = tn_input(g, "needed", TN_I32, TN_DIMS(n_edges));
        for (int i = 0; i < 2; i++) h = step(h, along_edges(h, b, a), along_edges(h, a, b), i);
    }
    return scores(h, runs);
}
/* The mean of drawn neighbours, those that are needed (way 0) or need: h f32[..,2,DRAWN,WIDTH], ids i32[..,2,DRAWN], n: none.
 */
static tn_tensor drawn_mean(tn_tensor h, tn_tensor ids, int way) {
    tn_shape mask = tn_tensor_shape(ids);
    mask.dim[mask.rank++] = 1;
    tn_tensor there = tn_cast(tn_lt(ids, tn_full(h.graph, TN_I32, TN_SCALAR, n)), TN_F32);
    tn_tensor sum = tn_sum(tn_mul(h, tn_reshape(there, mask)), TN_INTS(-2), 0);
    tn_tensor mean = tn_div(sum, tn_max_scalar(tn_sum(there, TN_INTS(-1), 1), 1)); /* f32[..,2,WIDTH] */
    return tn_squeeze(tn_slice_axis(mean, -2, way, way + 1, 1), TN_INTS(-2));
}
static tn_tensor drawn_graph(tn_graph *g, tn_tensor runs) { /* f32[BATCH,CLASSES] */
    tn_tensor w = tn_input(g, "words", TN_I32, TN_DIMS(n + 1, WORDS)), self = tn_input(g, "self", TN_I32, TN_DIMS(BATCH));
    tn_tensor near = tn_input(g, "near", TN_I32, TN_DIMS(BATCH, 2, DRAWN));
    tn_tensor far = tn_input(g, "far", TN_I32, TN_DIMS(BATCH, 2, DRAWN, 2, DRAWN));
    tn_graph_reuse(g, 1); /* layers are called for each ring of neighbours */
    tn_tensor h = of_words(tn_gather(w, self, 0)), h_near = of_words(tn_gather(w, near, 0)),
              h_far = of_words(tn_gather(w, far, 0));
    tn_tensor first = step(h, drawn_mean(h_near, near, 0), drawn_mean(h_near, near, 1), 0);
    h_near = step(h_near, drawn_mean(h_far, far, 0), drawn_mean(h_far, far, 1), 0);
    h = step(first, drawn_mean(h_near, near, 0), drawn_mean(h_near, near, 1), 1);
    tn_graph_reuse(g, 0);
    return scores(h, runs);
}
/* The loader's thread asks for package i of those that are learnt from: itself, neighbours, neighbours of these, its label. */
static void draw(uint64_t *random, int32_t i, int32_t *out /* [2,DRAWN] */) {
    for (int way = 0; way < 2; way++) {
        int32_t first = i < n ? begin[way][i] : 0, many = i < n ? begin[way][i + 1] - first : 0;
        for (int k = 0; k < DRAWN; k++) {
            *random = *random * 6364136223846793005u + 1442695040888963407u;
            int32_t one = many > DRAWN ? (int32_t)((*random >> 33) % (uint64_t)many) : k;
            *out++ = one < many ? end[way][first + one] : n;
        }
    }
}
static int fill(void *random, int64_t i, void *const *out) {
    int32_t *near = out[1], *far = out[2];
    memcpy(out[0], &train[i], sizeof *train);
    memcpy(out[3], &label[train[i]], sizeof *label);
    draw(random, train[i], near);
    for (int k = 0; k < 2 * DRAWN; k++) draw(random, near[k], far + (ptrdiff_t)k * 2 * DRAWN);
    return 0;
}

/* ---- training ---- */

static tn_session *session(tn_graph *g, tn_mode mode, tn_program **out_program) {
    tn_compile_opts o = TN_COMPILE_DEFAULTS;
    tn_session *s = NULL;
    o.mode = mode;
    check(tn_compile(g, &o, out_program));
    check(tn_session_new(*out_program, &s));
    tn_graph_free(g);
    return s;
}
static void bind(tn_session *s, const char *name, void *data) {
    int slot = tn_session_slot(s, name);
    if (slot >= 0) check(tn_session_bind(s, slot, data));
}
typedef struct {
    double accuracy, seconds;
} result;
static result learn(int messages, int drawn, int64_t steps) {
    tn_graph *g = tn_graph_new(ctx, "learn"), *ask = tn_graph_new(ctx, "ask");
    tn_tensor runs = tn_nn_counter(g, "runs"), y = drawn ? drawn_graph(g, runs) : whole_graph(g, messages, runs);
    tn_tensor want = tn_input(g, "label", TN_I32, TN_DIMS(drawn ? BATCH : n));
    tn_tensor loss = tn_nn_cross_entropy_with(y, want, (tn_nn_cross_entropy_opts){ .ignores = 1, .ignored = -1 });
    tn_nn_adam(
        loss, (tn_nn_adam_opts){ .rate = tn_nn_rate_cosine(runs, 1e-2, 1e-4, 0, steps), .weight_decay = 1e-3, .decoupled = 1 });
    tn_output(loss, "loss");
    tn_output(tn_argmax(whole_graph(ask, messages, (tn_tensor){ 0 }), -1, 0), "best");
    tn_program *p, *q;
    tn_session *s = session(g, TN_MODE_LOOP, &p), *t = session(ask, TN_MODE_COMPILED, &q);
    int32_t *known = room((size_t)n, sizeof *known);
    int64_t *best = room((size_t)n, sizeof *best);
    float value = 0;
    for (int32_t i = 0; i < n; i++) known[i] = -1;
    for (int32_t i = 0; i < n_train; i++) known[train[i]] = label[train[i]];
    bind(s, "words", words), bind(s, "needs", needs), bind(s, "needed", needed), bind(s, "loss", &value);
    bind(t, "words", words), bind(t, "needs", needs), bind(t, "needed", needed), bind(t, "best", best);
    if (!drawn) bind(s, "label", known);
    static const tn_io_tensor arrays[] = { { "self", TN_I32, { 0 }, NULL },
                                           { "near", TN_I32, { 2, { 2, DRAWN } }, NULL },
                                           { "far", TN_I32, { 4, { 2, DRAWN, 2, DRAWN } }, NULL },
                                           { "label", TN_I32, { 0 }, NULL } };
    tn_loader_opts o = { .batch = BATCH, .ring = EVERY, .shuffle = 1, .seed = 1 };
    uint64_t random = 1;
    tn_data *data = NULL;
    tn_loader *l = NULL;
    if (drawn) check(tn_data_callback(ctx, arrays, 4, n_train, fill, &random, &data)), check(tn_loader_new(ctx, data, &o, &l));
    double start = seconds();
    for (int64_t done = 0; done < steps; done += EVERY) {
        const tn_binding *ring = NULL;
        int64_t batches = 0;
        int n_in = 0;
        if (drawn) check(tn_loader_next(l, &ring, &n_in, &batches));
        check(tn_run_n(s, EVERY, ring, n_in, batches));
        if (isatty(2)) fprintf(stderr, "\r%lld of %lld steps, loss %.3f ", (long long)done, (long long)steps, (double)value);
    }
    result r = { 0, seconds() - start };
    int asked = 0, right = 0;
    check(tn_session_copy_state(t, s, NULL));
    check(tn_session_run(t));
    for (int32_t i = 0; i < n; i++)
        if (label[i] >= 0 && known[i] < 0) asked++, right += best[i] == label[i];
    r.accuracy = (double)right / asked;
    tn_loader_free(l), tn_data_free(ctx, data), tn_session_free(s), tn_session_free(t), tn_program_free(p), tn_program_free(q);
    free(known), free(best);
    return r;
}
int main(int argc, char **argv) {
    int json = 0, asked = 0;
    int64_t steps = 300;
    const char *path = "/var/lib/dpkg/status";
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help"))
            return fputs(help, stdout), 0;
        else if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (!strcmp(argv[i], "--steps") && i + 1 < argc && atoll(argv[i + 1]) > 0)
            steps = atoll(argv[++i]);
        else if (argv[i][0] == '-')
            return fputs(help, stderr), 2;
        else
            path = argv[i];
    }
    tn_config cfg = { .struct_size = sizeof cfg };
    tn_config_from_env(&cfg);
    if (!(ctx = tn_ctx_new(&cfg))) return 1;
    void *text;
    size_t n_text, n_commas = 0;
    check(tn_io_file_load(ctx, path, 1 << 30, &text, &n_text));
    for (size_t i = 0; i < n_text; i++) n_commas += ((char *)text)[i] == ',';
    read_packages(text);
    words = room((size_t)n + 1, sizeof *words), label = room((size_t)n, sizeof *label), train = room((size_t)n, sizeof *train);
    needs = room(n_commas + 2 * (size_t)n, sizeof *needs), needed = room(n_commas + 2 * (size_t)n, sizeof *needed);
    for (int32_t i = 0; i < n; i++)
        read_edges(i, packages[i].needs), read_edges(i, packages[i].more), read_words(i, packages[i].words);
    index_edges(0, needs, needed), index_edges(1, needed, needs);
    int largest = read_sections(&asked);
    if (n_train < BATCH || !asked || !n_edges) return fprintf(stderr, "gnn: %s has too few packages\n", path), 1;
    static const char *const names[] = { "words", "messages", "drawn" };
    static const char *const texts[] = { "words alone", "words and messages", "the same, of drawn neighbours" };
    double share = (double)largest / asked;
    printf(json ? "{\"packages\":%d,\"dependencies\":%d,\"learnt\":%d,\"held_out\":%d,\"largest\":%.4f"
                : "%d packages, %d dependencies; learnt from %d, asked for %d\n%.1f %% right  the largest section\n",
           n, n_edges, n_train, asked, json ? share : 100 * share);
    for (int i = 0; i < 3; i++) {
        result r = learn(i > 0, i == 2, steps);
        if (json)
            printf(",\"%s\":%.4f,\"%s_seconds\":%.2f", names[i], r.accuracy, names[i], r.seconds);
        else
            printf("%s%.1f %% right  %s (%.1f s)\n", isatty(2) ? "\r" : "", 100 * r.accuracy, texts[i], r.seconds);
    }
    if (json) puts("}");
    tn_io_free(ctx, text), tn_ctx_free(ctx);
    for (int i = 0; i < 2; i++) free(begin[i]), free(end[i]);
    free(packages), free(words), free(label), free(train), free(needs), free(needed);
    return 0;
}
