/* texts.c - the strings of a model: each has a number, by which tensors hold it.
 *
 * In: bytes. Out: numbers, the same for the same bytes, from 0 (the empty string) on. They live as long as the model, so that a
 * number means the same in every import. */
#include "onnx.h"

typedef struct text_args {
    tn_onnx_model *m;
    const char *text;
    size_t n;
    int64_t number;
} text_args;

static size_t slot_of(const struct onnx_texts *t, const char *text, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    size_t i = (size_t)(h ^ h >> 29) & ((size_t)t->n_slots - 1);
    for (; t->slots[i]; i = (i + 1) & ((size_t)t->n_slots - 1)) {
        const char *other = t->at[t->slots[i] - 1];
        if (!strncmp(other, text, n) && !other[n]) break;
    }
    return i;
}

static void grow(onnx_env *env, struct onnx_texts *t) {
    int64_t cap = t->cap ? 2 * t->cap : 32;
    const char **at = ONNX_NEW(env, const char *, cap);
    int64_t *slots = ONNX_NEW(env, int64_t, 2 * cap);
    if (t->n) memcpy(at, t->at, (size_t)t->n * sizeof *at);
    t->at = at, t->cap = cap, t->slots = slots, t->n_slots = 2 * cap;
    for (int64_t i = 0; i < t->n; i++) slots[slot_of(t, at[i], strlen(at[i]))] = i + 1;
}

static void add(onnx_env *env, struct onnx_texts *t, const char *text, size_t n) {
    char *copy = onnx_new(env, n + 1, 1);
    if (n) memcpy(copy, text, n);
    if (t->n == t->cap) grow(env, t);
    size_t i = slot_of(t, text, n);
    t->at[t->n++] = copy;
    t->slots[i] = t->n;
}

static void number_body(void *arg) {
    text_args *a = arg;
    struct onnx_texts *t = &a->m->texts;
    if (a->n && memchr(a->text, 0, a->n))
        onnx_fail(&a->m->env, TN_ERR_UNSUPPORTED, "%s: a string with a zero byte", a->m->env.file);
    if (!t->n) add(&a->m->env, t, "", 0);
    size_t i = slot_of(t, a->text, a->n);
    if (!t->slots[i]) {
        a->number = t->n;
        add(&a->m->env, t, a->text, a->n);
    } else {
        a->number = t->slots[i] - 1;
    }
}

int64_t onnx_text_number(onnx_env *env, tn_onnx_model *m, const char *text, size_t n) {
    text_args a = { m, text, n, 0 };
    tn_status s = onnx_try(&m->env, number_body, &a);
    if (s) onnx_again(env, s);
    return a.number;
}

tn_status tn_onnx_text_add(tn_onnx_model *m, const char *text, int64_t *out_number) {
    if (!m || !text || !out_number) return TN_ERR_INVAL;
    text_args a = { m, text, strlen(text), 0 };
    tn_status s = onnx_try(&m->env, number_body, &a);
    if (!s) *out_number = a.number;
    return s;
}

const char *tn_onnx_text(const tn_onnx_model *m, int64_t number) {
    return m && number >= 0 && number < m->texts.n ? m->texts.at[number] : NULL;
}
