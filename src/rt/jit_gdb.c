/* jit_gdb.c - the JIT interface of GDB (and LLDB): a list of object files in memory, and a function that the debugger stops in
 * when the list changes. In: object files. Out: entries of the list, owned by the caller.
 *
 * The debugger looks for two names and for variables that change, so this file has the library's only mutable data; only
 * contexts with tn_config.name_code touch it. Both names are hidden: a debugger finds them in the symbol table of each copy of
 * the library (not after `strip`, unless the symbols are kept beside it), and none of them can meet those of another copy or of
 * another JIT compiler in the process. */
#include "rt/jit_names.h"

#include <pthread.h>

/* Layout and values are GDB's. */
typedef struct jit_code_entry {
    struct jit_code_entry *next, *prev;
    const char *file;
    uint64_t size;
} jit_code_entry;
enum { JIT_NO_ACTION, JIT_REGISTER, JIT_UNREGISTER };
typedef struct jit_descriptor {
    uint32_t version, action;
    jit_code_entry *relevant, *first;
} jit_descriptor;

extern jit_descriptor __jit_debug_descriptor;
jit_descriptor __jit_debug_descriptor = { 1, JIT_NO_ACTION, NULL, NULL };
void __jit_debug_register_code(void);
__attribute__((noinline)) void __jit_debug_register_code(void) { __asm__ volatile("" ::: "memory"); }

static pthread_mutex_t jit_gdb_lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */

static void tell(jit_code_entry *e, uint32_t action) {
    __jit_debug_descriptor.relevant = e;
    __jit_debug_descriptor.action = action;
    __jit_debug_register_code();
    __jit_debug_descriptor.action = JIT_NO_ACTION;
}

void *jit_gdb_add(mem m, const unsigned char *file, size_t n) {
    jit_code_entry *e = mem_alloc(m, sizeof *e);
    if (!e) return NULL;
    e->file = (const char *)file, e->size = n;
    pthread_mutex_lock(&jit_gdb_lock);
    e->next = __jit_debug_descriptor.first;
    if (e->next) e->next->prev = e;
    __jit_debug_descriptor.first = e;
    tell(e, JIT_REGISTER);
    pthread_mutex_unlock(&jit_gdb_lock);
    return e;
}

void jit_gdb_remove(mem m, void *entry) {
    jit_code_entry *e = entry;
    if (!e) return;
    pthread_mutex_lock(&jit_gdb_lock);
    *(e->prev ? &e->prev->next : &__jit_debug_descriptor.first) = e->next;
    if (e->next) e->next->prev = e->prev;
    tell(e, JIT_UNREGISTER);
    pthread_mutex_unlock(&jit_gdb_lock);
    mem_free(m, e, sizeof *e);
}
