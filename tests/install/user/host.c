/* host.c - a host program with function names that libtenon also uses inside; both must keep their own. */
#include "tenon/tenon.h"

#include <stdio.h>
#include <string.h>

int graph_add(int a, int b) { return a + b; }
void *arena_alloc(void *a, size_t n) { return n ? a : NULL; }
void guard_fail(void) {}
void *mem_alloc(size_t n) { return n ? NULL : NULL; }
int hash_bytes(int a) { return a * 31; }
int str_add(int a) { return a - 1; }
int err_set(int a) { return a; }
int err_vset(int a) { return a; }
int eval_graph(int a) { return a; }

int main(void) {
    int here = 0;
    if (graph_add(2, 3) != 5 || arena_alloc(&here, 1) != &here || hash_bytes(2) != 62) return 3;
    tn_ctx *ctx = tn_ctx_new(NULL);
    if (!ctx) return 1;
    tn_status s = tn_ctx_status(ctx);
    printf("libtenon %s, %s, headers %d.%d.%d\n", tn_version(), tn_status_name(s), TN_VERSION_MAJOR, TN_VERSION_MINOR,
           TN_VERSION_PATCH);
    tn_ctx_free(ctx);
    return s == TN_OK && strcmp(tn_status_name(TN_ERR_IO), "TN_ERR_IO") == 0 ? 0 : 2;
}
