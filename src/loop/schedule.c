/* schedule.c - schedules as text, and the table of steps. In: text, or a schedule. Out: a schedule in the arena, or text. What
 * each step does is in a file of its own. */
#include "loop/schedule.h"

#include <stdarg.h>
#include <stdio.h>

static const step_info rows[STEP_COUNT] = {
    [STEP_NONE] = { "none", "", "", STEP_EXACT, 0, STEP_ANY },
#define EXACT STEP_EXACT
#define ORDER STEP_ORDER
#define SCALAR FORM_SCALAR
#define TILED FORM_TILED
#define BLOCKS FORM_BLOCKS
#define CPU STEP_CPU
#define GPU STEP_GPU
#define ANY STEP_ANY
#define STEP(name, args, order, form, devices, text) [STEP_##name] = { #name, args, text, order, form, devices },
#include "loop/steps.def"
#undef STEP
};

const step_info *step_get(step_op op) { return &rows[op < STEP_COUNT ? op : STEP_NONE]; }

/* ---- text to schedule ---- */

typedef struct reader {
    arena *a;
    const char *file, *text, *at, *end;
    bool nested; /* in the step nests */
} reader;

NORETURN static void fail_at(const reader *r, const char *place, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void fail_at(const reader *r, const char *place, const char *fmt, ...) {
    int line = 1, col = 1;
    char what[512];
    for (const char *c = r->text; c < place; c++) {
        col = *c == '\n' ? 1 : col + 1;
        line += *c == '\n';
    }
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    guard_fail(r->a->gd, TN_ERR_PARSE, "%s:%d:%d: %s", r->file, line, col, what);
}

static bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void skip_blanks(reader *r, bool lines) {
    for (; r->at < r->end; r->at++) {
        if (*r->at == '#')
            while (r->at + 1 < r->end && r->at[1] != '\n') r->at++;
        else if (*r->at != ' ' && *r->at != '\t' && *r->at != '\r' && !(lines && (*r->at == '\n' || *r->at == ';')))
            return;
    }
}

/* A word of the text, which the arena gets a copy of. */
static const char *word(reader *r, const char *what) {
    const char *from = r->at;
    while (r->at < r->end && is_word(*r->at)) r->at++;
    if (r->at == from) fail_at(r, from, "expected %s", what);
    char *w = arena_alloc(r->a, (size_t)(r->at - from) + 1);
    memcpy(w, from, (size_t)(r->at - from));
    return w;
}

static int64_t number(reader *r) {
    int64_t n = 0;
    const char *from = r->at;
    for (; r->at < r->end && is_digit(*r->at); r->at++)
        if (!size_mul(n, 10, &n) || !size_add(n, *r->at - '0', &n)) fail_at(r, from, "a number beyond 64 bits");
    if (r->at == from || (r->at < r->end && is_word(*r->at))) fail_at(r, from, "expected a number");
    return n;
}

static step_arg read_arg(reader *r) {
    step_arg x = { 0 };
    const char *from = r->at;
    if (is_digit(*r->at)) {
        x.kind = ARG_NUMBER, x.n = number(r);
        return x;
    }
    const char *w = word(r, "a loop, a buffer, a number or an option");
    if (strlen(w) >= sizeof x.word) fail_at(r, from, "%s is longer than any name", w);
    memcpy(x.word, w, strlen(w));
    if (r->at == r->end || *r->at != '=') return x;
    r->at++;
    x.kind = ARG_OPTION, x.n = number(r);
    return x;
}

/* Whether the pattern has the argument as an option or a flag. */
static bool pattern_has(const char *pattern, const step_arg *x) {
    char want[32];
    snprintf(want, sizeof want, "[%s%s]", x->word, x->kind == ARG_OPTION ? "=n" : "");
    return strstr(pattern, want) != NULL;
}

static bool is_next(const char *pattern, const char *word) {
    size_t n = strlen(word);
    return !strncmp(pattern, word, n) && (pattern[n] == ' ' || pattern[n] == 0 || pattern[n] == '.');
}

/* The arguments as steps.def has them: those that are needed in their order, then options. */
static bool fits(const loop_step *s, const char *pattern) {
    int i = 0;
    while (*pattern && *pattern != '[') {
        bool number = is_next(pattern, "n"), many = is_next(pattern, "loop..");
        if (i == s->n || s->arg[i].kind != (number ? ARG_NUMBER : ARG_WORD)) return false;
        for (i++; many && i < s->n && s->arg[i].kind == ARG_WORD; i++) {
        }
        while (*pattern && *pattern != ' ') pattern++;
        while (*pattern == ' ') pattern++;
    }
    for (; i < s->n; i++)
        if (s->arg[i].kind == ARG_NUMBER || !pattern_has(pattern, &s->arg[i])) return false;
    return true;
}

static void read_steps(reader *r, schedule *out);

/* { steps } .. } of the step nests. */
static void read_nests(reader *r, loop_step *s) {
    VEC(schedule) all = { 0 };
    if (r->nested) fail_at(r, r->at, "nests in a nest");
    r->nested = true;
    skip_blanks(r, true);
    if (r->at == r->end || *r->at != '{') fail_at(r, r->at, "expected { and the steps of each nest in braces");
    r->at++;
    for (;;) {
        skip_blanks(r, true);
        if (r->at < r->end && *r->at == '}') break;
        VEC_PUSH(r->a, &all, (schedule){ 0 });
        read_steps(r, &all.at[all.n - 1]);
    }
    r->at++;
    r->nested = false;
    s->nest = all.at, s->n_nests = all.n;
}

static loop_step read_step(reader *r) {
    const char *from = r->at, *name = word(r, "a step");
    step_arg args[STEP_MOST_ARGS];
    loop_step s = { .arg = args };
    for (int op = 1; op < STEP_COUNT; op++)
        if (!strcmp(rows[op].name, name)) s.op = (uint8_t)op;
    if (!s.op) {
        str all;
        str_init(&all, r->a);
        for (int op = 1; op < STEP_COUNT; op++) str_addf(&all, "%s%s", op > 1 ? ", " : "", rows[op].name);
        fail_at(r, from, "there is no step \"%s\"; the steps are %s", name, all.s);
    }
    for (;;) {
        skip_blanks(r, false);
        if (r->at == r->end || *r->at == '\n' || *r->at == ';' || *r->at == '}' || *r->at == '{') break;
        if (s.n == STEP_MOST_ARGS) fail_at(r, r->at, "%s: more than %d arguments", name, STEP_MOST_ARGS);
        args[s.n++] = read_arg(r);
    }
    if (!fits(&s, rows[s.op].args)) {
        str got;
        str_init(&got, r->a);
        step_print(&s, &got);
        fail_at(r, from, "\"%s\": expected %s %s", got.s, name, *rows[s.op].args ? rows[s.op].args : "and no argument");
    }
    s.arg = arena_copy(r->a, args, sizeof *args * (size_t)s.n);
    if (s.op == STEP_nests)
        read_nests(r, &s);
    else if (r->at < r->end && *r->at == '{')
        fail_at(r, r->at, "%s has no steps inside", name);
    return s;
}

loop_step step_parse(arena *a, const char *text) {
    reader r = { .a = a, .file = "step", .text = text, .at = text, .end = text + strlen(text) };
    skip_blanks(&r, true);
    loop_step s = read_step(&r);
    skip_blanks(&r, true);
    if (r.at < r.end) fail_at(&r, r.at, "expected one step");
    return s;
}

/* { steps } */
static void read_steps(reader *r, schedule *out) {
    skip_blanks(r, true);
    if (r->at == r->end || *r->at != '{') fail_at(r, r->at, "expected {");
    r->at++;
    for (;;) {
        skip_blanks(r, true);
        if (r->at == r->end) fail_at(r, r->at, "expected }");
        if (*r->at == '}') break;
        loop_step s = read_step(r);
        VEC_PUSH(r->a, &out->steps, s);
    }
    r->at++;
}

schedule schedule_parse_steps(arena *a, const char *text, size_t n, const char *file) {
    schedule s = { 0 };
    reader r = { .a = a, .file = file, .text = text, .at = text, .end = text + n };
    for (skip_blanks(&r, true); r.at < r.end; skip_blanks(&r, true)) {
        loop_step x = read_step(&r);
        VEC_PUSH(a, &s.steps, x);
    }
    return s;
}

static void read_schedule(reader *r, schedule *out) {
    const char *from = r->at;
    if (strcmp(word(r, "schedule @kernel { steps }"), "schedule") != 0) fail_at(r, from, "expected schedule @kernel { steps }");
    skip_blanks(r, false);
    if (r->at == r->end || *r->at != '@') fail_at(r, r->at, "expected @ and the name of a kernel");
    r->at++;
    out->name = word(r, "the name of a kernel");
    read_steps(r, out);
}

void schedule_parse(arena *a, const char *text, size_t n, const char *file, schedule_list *out) {
    reader r = { .a = a, .file = file, .text = text, .at = text, .end = text + n };
    *out = (schedule_list){ 0 };
    for (;;) {
        skip_blanks(&r, true);
        if (r.at == r.end) break;
        schedule s = { 0 };
        const char *from = r.at;
        read_schedule(&r, &s);
        if (schedule_find(out, s.name)) fail_at(&r, from, "a second schedule for @%s", s.name);
        VEC_PUSH(a, &out->at, s);
    }
}

const schedule *schedule_find(const schedule_list *list, const char *name) {
    for (int i = 0; list && i < list->at.n; i++)
        if (!strcmp(list->at.at[i].name, name)) return &list->at.at[i];
    return NULL;
}

const schedule *schedule_nests(const schedule *s) {
    for (int i = 0; i < s->steps.n; i++)
        if (s->steps.at[i].op == STEP_nests) return s->steps.at[i].nest;
    return NULL;
}

/* ---- schedule to text ---- */

void schedule_print_steps(const schedule *s, str *out) {
    for (int i = 0; i < s->steps.n; i++) {
        if (i) str_add(out, "; ");
        step_print(&s->steps.at[i], out);
    }
}

static void print_nest(const schedule *s, str *out) {
    str_add(out, "{ ");
    schedule_print_steps(s, out);
    str_add(out, s->steps.n ? " }" : "}");
}

void step_print(const loop_step *s, str *out) {
    str_add(out, rows[s->op].name);
    for (int i = 0; i < s->n; i++) {
        const step_arg *x = &s->arg[i];
        if (x->kind == ARG_NUMBER)
            str_addf(out, " %lld", (long long)x->n);
        else if (x->kind == ARG_OPTION)
            str_addf(out, " %s=%lld", x->word, (long long)x->n);
        else
            str_addf(out, " %s", x->word);
    }
    for (int i = 0; i < s->n_nests; i++) {
        str_add(out, i ? " " : " { ");
        print_nest(&s->nest[i], out);
        if (i + 1 == s->n_nests) str_add(out, " }");
    }
}

/* A nest a line. */
static void print_nests(const loop_step *s, str *out) {
    str_add(out, "nests {\n");
    for (int i = 0; i < s->n_nests; i++) {
        str_add(out, "    ");
        print_nest(&s->nest[i], out);
        str_add(out, "\n");
    }
    str_add(out, "  }");
}

void schedule_print(const schedule *s, str *out) {
    str_addf(out, "schedule @%s {\n", s->name);
    for (int i = 0; i < s->steps.n; i++) {
        const loop_step *x = &s->steps.at[i];
        str_add(out, "  ");
        (x->n_nests ? print_nests : step_print)(x, out);
        str_add(out, "\n");
    }
    str_add(out, "}\n");
}

/* ---- what the files of the steps share ---- */

bool step_refuse(str *why, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    why->n = 0;
    str_add(why, text);
    return false;
}

kvar step_loop(const kernel *k, const loop_step *s, int arg, str *why) {
    for (kvar v = 0; arg < s->n && v < k->vars.n; v++)
        if (!strcmp(k->vars.at[v].name, s->arg[arg].word)) return v;
    step_refuse(why, "the kernel has no loop %s", arg < s->n ? s->arg[arg].word : "");
    return -1;
}

int step_buf(const kernel *k, const loop_step *s, int arg, str *why) {
    const char *w = arg < s->n ? s->arg[arg].word : "";
    int b = -1;
    if (w[0] == 'b' && is_digit(w[1]))
        for (b = 0, w++; *w && b < k->bufs.n; w++) b = is_digit(*w) ? 10 * b + *w - '0' : k->bufs.n;
    if (b >= 0 && b < k->bufs.n) return b;
    step_refuse(why, "the kernel has no buffer %s", arg < s->n ? s->arg[arg].word : "");
    return -1;
}

int64_t step_option(const loop_step *s, const char *key, int64_t none) {
    for (int i = 0; i < s->n; i++)
        if (s->arg[i].kind == ARG_OPTION && !strcmp(s->arg[i].word, key)) return s->arg[i].n;
    return none;
}

bool step_flag(const loop_step *s, const char *w) {
    for (int i = 0; i < s->n; i++)
        if (s->arg[i].kind == ARG_WORD && !strcmp(s->arg[i].word, w)) return true;
    return false;
}

int step_find_loop(const kernel *k, kvar v) {
    int found = 0;
    for (int i = 1; i < k->ins.n; i++) {
        if (k->ins.at[i].op != K_LOOP || k->ins.at[i].var != v) continue;
        if (found) return 0;
        found = i;
    }
    return found;
}
