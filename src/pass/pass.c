/* pass.c - the runner of graph passes. In: a compacted, verified graph. Out: the same, rewritten. The order is the order of
 * passes.def. In checked runs each pass is followed by a test of the use lists (before compaction, which could hide a stale
 * one) and of the whole graph (after it); what fails is a defect of the pass and is reported under its name. */
#include "pass/pass.h"

#include "pass/rewrite.h"
#include "pass/watch.h"

#define MAX_ROUNDS 64 /* a graph of n nodes settles in a handful; see tests/pass/test_pass.c */

static const pass_info table[] = {
#define PASS(name, stage, doc, regions) { #name, doc, regions, STAGE_##stage, pass_##name },
#include "pass/passes.def"
#undef PASS
};

const pass_info *pass_table(int *out_n) {
    *out_n = (int)COUNT_OF(table);
    return table;
}

const pass_info *pass_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

/* The records of one list: each names a slot that holds v, no slot twice, links agree. Returns the number of records or -1. */
static int64_t check_use_list(const graph *g, val v, const int64_t *first_slot, uint8_t *seen, str *out) {
    int64_t count = 0;
    uint32_t prev = 0;
    for (uint32_t r = graph_get(g, v)->first_use; r != 0; r = g->uses.at[r - 1].next) {
        if (r > (uint32_t)g->uses.n) {
            str_addf(out, "%%%u: use record %u does not exist\n", v, r);
            return -1;
        }
        const use *u = &g->uses.at[r - 1];
        bool fits = u->user < (val)g->nodes.n && u->slot >= 0 && u->slot < graph_get(g, u->user)->n_in;
        if (!fits || graph_get(g, u->user)->in[u->slot] != v || u->prev != prev || seen[first_slot[u->user] + u->slot]) {
            str_addf(out, "%%%u: stale use record of operand %d of %%%u\n", v, u->slot, u->user);
            return -1;
        }
        seen[first_slot[u->user] + u->slot] = 1;
        prev = r;
        count++;
    }
    return count;
}

/* Outputs and the lists of those that read a value must tell the same story. */
static bool check_outputs(const graph *g, str *out) {
    int n = 0;
    for (int v = 0; v < g->nodes.n; v++)
        for (int i = g->nodes.at[v].first_out; i; i = g->outputs.at[i - 1].next)
            if (i > g->outputs.n || g->outputs.at[i - 1].v != (val)v || ++n > g->outputs.n) {
                str_addf(out, "%%%d: stale list of outputs\n", v);
                return false;
            }
    if (n != g->outputs.n) str_addf(out, "%d outputs, of which values list %d\n", g->outputs.n, n);
    return n == g->outputs.n;
}

/* Use lists and operands must tell the same story. Returns false with a text in out. */
static bool check_uses(const graph *g, arena *scratch, str *out) {
    int64_t *first_slot = ARENA_ARRAY(scratch, int64_t, g->nodes.n + 1);
    int64_t n_slots = 0, n_records = 0, n_empty = 0;
    for (int v = 1; v < g->nodes.n; v++) {
        const node *n = graph_get(g, (val)v);
        first_slot[v] = n_slots;
        n_slots += n->n_in;
        for (int i = 0; i < n->n_in; i++) {
            if (n->in[i] >= (val)g->nodes.n) {
                str_addf(out, "%%%d: operand %d does not exist\n", v, i);
                return false;
            }
            n_empty += n->in[i] == 0;
        }
    }
    uint8_t *seen = ARENA_ARRAY(scratch, uint8_t, n_slots + 1);
    for (int v = 1; v < g->nodes.n; v++) {
        int64_t count = check_use_list(g, (val)v, first_slot, seen, out);
        if (count < 0) return false;
        n_records += count;
    }
    if (n_records != n_slots - n_empty)
        str_addf(out, "%lld operands, but %lld uses\n", (long long)(n_slots - n_empty), (long long)n_records);
    return n_records == n_slots - n_empty;
}

/* Values are computable one after the other: taking away those whose operands are all taken leaves none. Use lists are right.
 */
static bool check_acyclic(const graph *g, arena *scratch, str *out) {
    int32_t *waits_for = ARENA_ARRAY(scratch, int32_t, g->nodes.n + 1);
    val *ready = ARENA_ARRAY(scratch, val, g->nodes.n + 1);
    int n_ready = 0, n_done = 0;
    for (int v = 1; v < g->nodes.n; v++) {
        for (int i = 0; i < graph_get(g, (val)v)->n_in; i++) waits_for[v] += graph_get(g, (val)v)->in[i] != 0;
        if (waits_for[v] == 0) ready[n_ready++] = (val)v;
    }
    while (n_done < n_ready) {
        val v = ready[n_done++];
        for (uint32_t r = graph_get(g, v)->first_use; r != 0; r = g->uses.at[r - 1].next) {
            val user = g->uses.at[r - 1].user;
            if (--waits_for[user] == 0) ready[n_ready++] = user;
        }
    }
    if (n_done != g->nodes.n - 1) str_addf(out, "%d values depend on themselves\n", g->nodes.n - 1 - n_done);
    return n_done == g->nodes.n - 1;
}

bool pass_run_watched(graph *g, const pass_info *p, arena *scratch, bool check, const pass_watch *w) {
    bool changed = p->run(g, scratch);
    str problems;
    str_init(&problems, scratch);
    if (check && !(check_uses(g, scratch, &problems) && check_outputs(g, &problems) && check_acyclic(g, scratch, &problems)))
        guard_fail(g->a->gd, TN_ERR_INTERNAL, "pass %s left wrong uses:\n%s", p->name, problems.s);
    if (changed && w) w->changed(w->ud, g, p);
    if (changed) graph_compact(g);
    if (check && graph_check(g, &problems) != 0)
        guard_fail(g->a->gd, TN_ERR_INTERNAL, "pass %s broke the graph:\n%s", p->name, problems.s);
    return changed;
}

const char *pass_stage_name(pass_stage stage) {
    static const char *const names[] = {
        [STAGE_CANON] = "canon", [STAGE_LOWER] = "lower",   [STAGE_GPU] = "gpu",    [STAGE_UNITS] = "units",
        [STAGE_CPU] = "cpu",     [STAGE_TARGET] = "target", [STAGE_ASKED] = "asked"
    };
    return names[stage];
}

bool pass_run_stage_watched(graph *g, pass_stage stage, arena *scratch, bool check, const pass_watch *w) {
    bool changed = false;
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].stage == stage) changed |= pass_run_watched(g, &table[i], scratch, check, w);
    return changed;
}

void pass_run_all_watched(graph *g, arena *scratch, bool check, const pass_watch *w) {
    graph_compact(g);
    for (int round = 0; round < MAX_ROUNDS; round++) {
        const char *last = NULL;
        for (size_t i = 0; i < COUNT_OF(table) && !(last && table[i].stage == STAGE_LOWER); i++)
            if (table[i].stage <= STAGE_LOWER && pass_run_watched(g, &table[i], scratch, check, w)) last = table[i].name;
        if (!last) return;
        if (check && round == MAX_ROUNDS - 1)
            guard_fail(g->a->gd, TN_ERR_INTERNAL, "passes do not settle after %d rounds; %s changed the graph last", MAX_ROUNDS,
                       last);
    }
}

bool pass_run(graph *g, const pass_info *p, arena *scratch, bool check) { return pass_run_watched(g, p, scratch, check, NULL); }
void pass_run_all(graph *g, arena *scratch, bool check) { pass_run_all_watched(g, scratch, check, NULL); }
void pass_run_stage(graph *g, pass_stage stage, arena *scratch, bool check) {
    pass_run_stage_watched(g, stage, scratch, check, NULL);
}
