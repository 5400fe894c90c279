/* export_data.c - where the data of an exported program are: temporaries, states, constants; constants as the bytes of a file
 * or as text.
 *
 * In: a plan whose graph has its values. Out: places; bytes in the plan's arena, or text. */
#include "emit/export.h"

enum { PER_LINE = 12, MOST_TEXT = 4 << 20 /* numbers: some 50 MB of text, which a compiler takes a minute for */ };

static int64_t round_up(int64_t n) { return (n + EXPORT_ALIGN - 1) / EXPORT_ALIGN * EXPORT_ALIGN; }

bool export_in_state(const exporter *x, const pbuf *b) {
    return b->slot == SLOT_STATE || (b->slot == SLOT_SHARED && x->shared_in_state);
}
int64_t export_state_place(const exporter *x, const pbuf *b) {
    return b->offset + (b->slot == SLOT_SHARED ? x->p->state_bytes : 0);
}
int64_t export_data_place(const exporter *x, const pbuf *b) {
    return b->offset + (b->slot == SLOT_SHARED ? round_up(x->p->const_bytes) : 0);
}

/* The value as the kernels want it; NULL: zeros. */
static const uint8_t *in_order(const exporter *x, const pbuf *b) {
    const uint8_t *value = graph_get(x->p->g, b->node)->data;
    if (!b->panels || !value) return value;
    uint8_t *bytes = arena_alloc(x->a, (size_t)b->bytes + 1);
    pbuf_fill(b, value, bytes);
    return bytes;
}

static bool is_zero(const uint8_t *data, int64_t n) { return n == 0 || (!data[0] && !memcmp(data, data + 1, (size_t)n - 1)); }

static bool is_before(const void *p, const void *q, const void *unused) {
    (void)unused;
    return ((const export_item *)p)->at < ((const export_item *)q)->at;
}

void export_place_data(exporter *x) {
    const plan *p = x->p;
    for (int i = 0; i < p->states.n; i++)
        x->shared_in_state |= p->bufs.at[p->states.at[i].buf].slot == SLOT_SHARED && !p->states.at[i].given;
    for (int i = 0; i < p->states.n; i++) x->n_states += export_in_state(x, &p->bufs.at[p->states.at[i].buf]);
    x->temp_bytes = round_up(p->temp_bytes);
    x->arena_bytes = x->temp_bytes + EXPORT_ALIGN;
    if (!x->f->gpu) x->arena_bytes += x->threads * round_up(emit_c_most_scratch(p));
    x->state_bytes = p->state_bytes + (x->shared_in_state ? p->shared_bytes : 0);
    if (x->state_bytes) x->state_bytes = round_up(x->state_bytes) + EXPORT_ALIGN;
    int64_t fixed = round_up(p->const_bytes) + (x->shared_in_state ? 0 : round_up(p->shared_bytes)), end = 0;
    for (int b = 0; b < p->bufs.n; b++) {
        const pbuf *pb = &p->bufs.at[b];
        const void *value = graph_get(p->g, pb->node)->data;
        if ((pb->kind != PB_CONST && pb->kind != PB_STATE) || !value || !pb->bytes) continue;
        if (pb->kind == PB_CONST && pb->first < 0) continue; /* no kernel uses it */
        export_item item = { b, export_data_place(x, pb), pb->bytes };
        if (export_in_state(x, pb)) {
            if (is_zero(value, pb->bytes)) continue;
            item.at = fixed, fixed += round_up(pb->bytes);
        }
        VEC_PUSH(x->a, &x->items, item);
        if (item.at + item.bytes > end) end = item.at + item.bytes;
    }
    x->data_bytes = round_up(end);
    merge_sort(x->a, x->items.at, x->items.n, sizeof *x->items.at, is_before, NULL);
    if (!x->f->weights && !x->f->isa) return;
    x->data = arena_alloc(x->a, (size_t)x->data_bytes + 1);
    memset(x->data, 0, (size_t)x->data_bytes + 1);
    for (int i = 0; i < x->items.n; i++)
        pbuf_fill(&p->bufs.at[x->items.at[i].buf], graph_get(p->g, p->bufs.at[x->items.at[i].buf].node)->data,
                  x->data + x->items.at[i].at);
}

/* ---- as text ---- */

static void print_element(str *out, tn_dtype t, const void *data, int64_t i) {
    switch (t) {
    case TN_F32:
        emit_float(out, t, (double)((const float *)data)[i]);
        return;
    case TN_F64:
        emit_float(out, t, ((const double *)data)[i]);
        return;
    case TN_I32:
    case TN_U32:
        str_addf(out, ((const int32_t *)data)[i] == INT32_MIN ? "-2147483647 - 1" : "%d", ((const int32_t *)data)[i]);
        return;
    case TN_I64:
    case TN_U64:
        str_addf(out, ((const int64_t *)data)[i] == INT64_MIN ? "-9223372036854775807LL - 1" : "%lldLL",
                 (long long)((const int64_t *)data)[i]);
        return;
    default:
        if (dtype_is_narrow_float(t)) {
            uint16_t bits = 0;
            memcpy(&bits, (const char *)data + (size_t)i * dtype_size(t), dtype_size(t));
            str_addf(out, "0x%x", (unsigned)bits);
        } else
            str_addf(out, "%d", (int)dtype_load_int(t, data, i));
    }
}

/* Trailing zeros are left to C. */
static void print_array(exporter *x, const pbuf *pb, str *out) {
    const uint8_t *data = in_order(x, pb);
    int64_t used = pb->elems, size = (int64_t)dtype_size((tn_dtype)pb->dtype);
    while (used > 1 && is_zero(data + (used - 1) * size, size)) used--;
    str_add(out, "    { ");
    for (int64_t i = 0; i < used; i++) {
        str_add(out, i == 0 ? "" : i % PER_LINE ? ", " : ",\n      ");
        print_element(out, (tn_dtype)pb->dtype, data, i);
    }
    str_add(out, " },\n");
}

/* A structure without holes, so that places are those of the plan. */
void export_print_data(exporter *x, str *out) {
    int64_t n = 0, end = 0;
    for (int i = 0; i < x->items.n; i++) n += x->p->bufs.at[x->items.at[i].buf].elems;
    if (n > MOST_TEXT)
        guard_fail(
            x->a->gd, TN_ERR_UNSUPPORTED,
            "graph @%s has %lld numbers of constant data, which are too many for a text of C (at most %d): let them have a "
            "file of their own (tn_export_opts.weights, tenon export --weights)",
            x->p->g->name, (long long)n, MOST_TEXT);
    if (!x->items.n) return;
    str_add(out, "static const struct {\n");
    for (int i = 0; i < x->items.n; end = x->items.at[i].at + x->items.at[i].bytes, i++) {
        const export_item *item = &x->items.at[i];
        const pbuf *pb = &x->p->bufs.at[item->buf];
        if (item->at > end) str_addf(out, "    unsigned char hole_%d[%lld];\n", i, (long long)(item->at - end));
        str_addf(out, "    %s data_%d[%lld];\n", clike_memory_type((tn_dtype)pb->dtype), i, (long long)pb->elems);
    }
    str_addf(out, "} __attribute__((aligned(%d))) data = {\n", EXPORT_ALIGN);
    end = 0;
    for (int i = 0; i < x->items.n; end = x->items.at[i].at + x->items.at[i].bytes, i++) {
        if (x->items.at[i].at > end) str_add(out, "    { 0 },\n");
        print_array(x, &x->p->bufs.at[x->items.at[i].buf], out);
    }
    str_add(out, "};\n");
}
