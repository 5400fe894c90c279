/* jit_names.c - implementation of jit_names.h: perf's map, and an ELF object of symbols and unwind information. In: an image
 * and where it runs. Out: a file, owned by the caller, that describes the code without holding it. */
#include "rt/jit_names.h"

#include <elf.h>
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

/* ---- unwind information ---- */

/* In libgcc_s, when the process has it. */
extern void __register_frame(void *) __attribute__((weak));
extern void __deregister_frame(void *) __attribute__((weak));

enum { CIE_BYTES = 24, FDE_BYTES = 64 };

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

static const unsigned char frame_start[] = { 0x55, 0x48, 0x8b, 0xec };                          /* push rbp; mov rbp, rsp */
static const unsigned char frame_end[] = { 0xc9, 0xc3 };                                        /* leave; ret */
static const unsigned char other_start[] = { 0x55, 0x48, 0x8d };                                /* push rbp; lea rbp, ... */
static const unsigned char other_end[] = { 0x5d, 0xc3 };                                        /* pop rbp; ret */
static const unsigned char pushes[] = { 0x53, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57 }; /* rbx, r12 to r15 */

static bool is_between(const device_image *image, const device_symbol *s, const unsigned char *start, size_t n_start,
                       const unsigned char *end, size_t n_end) {
    const unsigned char *f = image->bytes + s->offset;
    return s->size > 24 && !memcmp(f, start, n_start) && !memcmp(f + s->size - n_end, end, n_end);
}
static bool frame_on_stack(const device_image *image, const device_symbol *s) {
    return is_between(image, s, frame_start, sizeof frame_start, frame_end, sizeof frame_end);
}
static bool has_frame(const device_image *image, const device_symbol *s) {
    return frame_on_stack(image, s) || is_between(image, s, other_start, sizeof other_start, other_end, sizeof other_end);
}

/* CFA = rbp + 16 between the start and the return, or, where rbp is the base of a frame elsewhere, rsp + 16. Entries keep what
 * belongs to their callers. */
static void put_fde(unsigned char **p, const unsigned char *cie, const device_image *image, const device_symbol *s,
                    const unsigned char *at) {
    unsigned char *start = *p;
    static const unsigned char entry[] = { 0, 0x41, 0x0e, 16, 0x86, 2 }, base[] = { 0x43, 0x0d, 6 }, end[] = { 0x0c, 7, 8 };
    static const unsigned char kept[] = { 0x40 | sizeof pushes, 0x83, 3, 0x8c, 4, 0x8d, 5, 0x8e, 6, 0x8f, 7 };
    uintptr_t from = (uintptr_t)(at + s->offset);
    uint64_t size = s->size;
    uint32_t done = 1;
    put32(p, FDE_BYTES - 4);
    put32(p, (uint32_t)(*p - cie));
    put(p, &from, sizeof from);
    put(p, &size, sizeof size);
    put(p, entry, sizeof entry);
    if (frame_on_stack(image, s)) put(p, base, sizeof base), done = sizeof frame_start;
    if (!memcmp(image->bytes + s->offset + done, pushes, sizeof pushes)) put(p, kept, sizeof kept), done += sizeof pushes;
    *(*p)++ = 0x04; /* advance by 4 bytes' worth */
    put32(p, (uint32_t)size - 1 - done);
    put(p, end, sizeof end);
    while (*p < start + FDE_BYTES) *(*p)++ = 0;
}

/* ---- the object file ---- */

enum { S_NONE, S_TEXT, S_UNWIND, S_SYMBOLS, S_STRINGS, N_SECTIONS };
static const char section_names[] = "\0.text\0.eh_frame\0.symtab\0.strtab";
static const Elf64_Word name_at[N_SECTIONS] = { 0, 1, 7, 17, 25 };

typedef struct layout {
    size_t sections, symbols, unwind, strings, end; /* offsets */
} layout;

static layout lay_out(const device_image *image) {
    layout l = { .sections = sizeof(Elf64_Ehdr) };
    l.symbols = l.sections + N_SECTIONS * sizeof(Elf64_Shdr);
    l.unwind = l.symbols + ((size_t)image->n_functions + 1) * sizeof(Elf64_Sym);
    l.strings = l.unwind + CIE_BYTES + (size_t)image->n_functions * FDE_BYTES + 4;
    l.end = l.strings + sizeof section_names;
    for (int i = 0; i < image->n_functions; i++) l.end += strlen(image->functions[i].name) + 1;
    return l;
}

static void put_header(unsigned char *file, const layout *l) {
    Elf64_Ehdr h = { .e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
                     .e_type = ET_REL,
                     .e_machine = EM_X86_64,
                     .e_version = EV_CURRENT,
                     .e_shoff = l->sections,
                     .e_ehsize = sizeof(Elf64_Ehdr),
                     .e_shentsize = sizeof(Elf64_Shdr),
                     .e_shnum = N_SECTIONS,
                     .e_shstrndx = S_STRINGS };
    memcpy(file, &h, sizeof h);
}

static void put_sections(unsigned char *file, const layout *l, const device_image *image, const unsigned char *at) {
    size_t n_unwind = l->strings - l->unwind;
    Elf64_Shdr s[N_SECTIONS] = {
        [S_TEXT] = { .sh_type = SHT_NOBITS,
                     .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
                     .sh_addr = (uintptr_t)at,
                     .sh_size = image->n_bytes,
                     .sh_addralign = 16 },
        [S_UNWIND] = { .sh_type = SHT_PROGBITS,
                       .sh_flags = SHF_ALLOC,
                       .sh_addr = (uintptr_t)(file + l->unwind),
                       .sh_offset = l->unwind,
                       .sh_size = n_unwind,
                       .sh_addralign = 1 },
        [S_SYMBOLS] = { .sh_type = SHT_SYMTAB,
                        .sh_offset = l->symbols,
                        .sh_size = l->unwind - l->symbols,
                        .sh_link = S_STRINGS,
                        .sh_info = 1, /* all but the first are global */
                        .sh_addralign = 8,
                        .sh_entsize = sizeof(Elf64_Sym) },
        [S_STRINGS] = { .sh_type = SHT_STRTAB, .sh_offset = l->strings, .sh_size = l->end - l->strings, .sh_addralign = 1 },
    };
    for (int i = 0; i < N_SECTIONS; i++) s[i].sh_name = name_at[i];
    memcpy(file + l->sections, s, sizeof s);
}

static void put_symbols(unsigned char *file, const layout *l, const device_image *image) {
    size_t text = l->strings + sizeof section_names;
    memcpy(file + l->strings, section_names, sizeof section_names);
    for (int i = 0; i < image->n_functions; i++) {
        const device_symbol *f = &image->functions[i];
        Elf64_Sym s = { .st_name = (Elf64_Word)(text - l->strings),
                        .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                        .st_shndx = S_TEXT,
                        .st_value = f->offset,
                        .st_size = f->size };
        size_t n = strlen(f->name) + 1;
        memcpy(file + l->symbols + ((size_t)i + 1) * sizeof s, &s, sizeof s);
        memcpy(file + text, f->name, n);
        text += n;
    }
}

static void put_unwind(unsigned char *to, const device_image *image, const unsigned char *at) {
    unsigned char *p = to;
    put_cie(&p);
    for (int i = 0; i < image->n_functions; i++)
        if (has_frame(image, &image->functions[i])) put_fde(&p, to, image, &image->functions[i], at);
    put32(&p, 0); /* memory is zeroed: what is left are ends, too */
}

void jit_names_add(mem m, const device_image *image, const unsigned char *at, jit_object *out) {
    layout l = lay_out(image);
    *out = (jit_object){ .bytes = mem_alloc(m, l.end), .n = l.end };
    if (!out->bytes) return;
    put_header(out->bytes, &l);
    put_sections(out->bytes, &l, image, at);
    put_symbols(out->bytes, &l, image);
    put_unwind(out->bytes + l.unwind, image, at);
    out->entry = jit_gdb_add(m, out->bytes, l.end);
    if (__register_frame && __deregister_frame) {
        out->unwind = out->bytes + l.unwind;
        __register_frame(out->unwind);
    }
}

void jit_names_remove(mem m, jit_object *o) {
    if (!o->bytes) return;
    if (o->unwind) __deregister_frame(o->unwind);
    jit_gdb_remove(m, o->entry);
    mem_free(m, o->bytes, o->n);
    *o = (jit_object){ 0 };
}
