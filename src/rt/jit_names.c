/* jit_names.c - implementation of jit_names.h. */
#include "rt/jit_names.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* ---- perf ---- */

void jit_names_perf(const device_image *image, const unsigned char *at) {
    char path[64], line[192];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    for (int i = 0; i < image->n_functions; i++) {
        const device_symbol *s = &image->functions[i];
        int n =
            snprintf(line, sizeof line, "%lx %zx tenon:%.120s\n", (unsigned long)(uintptr_t)(at + s->offset), s->size, s->name);
        if (n > 0 && write(fd, line, (size_t)n) != n) break; /* one write a line: other threads append too */
    }
    close(fd);
}

/* ---- the unwinder ---- */

/* In libgcc_s, when the process has it. */
extern void __register_frame(void *) __attribute__((weak));
extern void __deregister_frame(void *) __attribute__((weak));

enum { CIE_BYTES = 24, FDE_BYTES = 48 };

static void put(unsigned char **p, const void *bytes, size_t n) {
    memcpy(*p, bytes, n);
    *p += n;
}
static void put32(unsigned char **p, uint32_t v) { put(p, &v, sizeof v); }

static void put_cie(unsigned char **p) {
    /* version 1, "zR", code in 1, data in -8, return address in 16; addresses are absolute; CFA = rsp + 8, return address at
     * CFA - 8 */
    static const unsigned char rest[] = { 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0, 0x0c, 7, 8, 0x90, 1, 0, 0 };
    put32(p, CIE_BYTES - 4);
    put32(p, 0);
    put(p, rest, sizeof rest);
}

/* push rbp; mov rbp, rsp; ..; leave; ret */
static void put_fde(unsigned char **p, const unsigned char *cie, uintptr_t from, uint64_t size) {
    const unsigned char *start = *p;
    static const unsigned char entry[] = { 0, 0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x04 }, end[] = { 0x0c, 7, 8 };
    put32(p, FDE_BYTES - 4);
    put32(p, (uint32_t)(*p - cie));
    put(p, &from, sizeof from);
    put(p, &size, sizeof size);
    put(p, entry, sizeof entry);
    put32(p, (uint32_t)size - 1 - 4);
    put(p, end, sizeof end);
    while (*p < start + FDE_BYTES) *(*p)++ = 0;
}

static bool has_frame(const device_image *image, const device_symbol *s) {
    static const unsigned char prologue[] = { 0x55, 0x48, 0x8b, 0xec }, epilogue[] = { 0xc9, 0xc3 };
    const unsigned char *f = image->bytes + s->offset;
    return s->size > 8 && !memcmp(f, prologue, sizeof prologue) && !memcmp(f + s->size - 2, epilogue, sizeof epilogue);
}

unsigned char *jit_names_unwind(mem m, const device_image *image, const unsigned char *at, size_t *out_size) {
    *out_size = CIE_BYTES + (size_t)image->n_functions * FDE_BYTES + 4;
    unsigned char *all = __register_frame && __deregister_frame ? mem_alloc(m, *out_size) : NULL, *p = all;
    if (!all) return NULL;
    put_cie(&p);
    for (int i = 0; i < image->n_functions; i++) {
        const device_symbol *s = &image->functions[i];
        if (has_frame(image, s)) put_fde(&p, all, (uintptr_t)(at + s->offset), s->size);
    }
    put32(&p, 0);
    __register_frame(all);
    return all;
}

void jit_names_forget(mem m, unsigned char *unwind, size_t size) {
    if (!unwind) return;
    __deregister_frame(unwind);
    mem_free(m, unwind, size);
}
