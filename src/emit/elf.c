/* elf.c - machine code and constant data as a relocatable object of ELF for x86-64, with a symbol each, and such an object as a
 * static library. In: position-independent code, bytes. Out: the bytes of the file. Calls of imports go by way of the linker's
 * table of addresses (GOT), so that the code can be part of any program. */
#include "emit/emit.h"

#include <elf.h>

enum { TEXT = 1, RODATA, RELOCATIONS, SYMTAB, STRTAB, STACK, SHSTRTAB, N_SECTIONS, CODE_ALIGN = 64, OWN_SYMBOLS = 3 };

static const char section_names[] = "\0.text\0.rodata\0.rela.text\0.symtab\0.strtab\0.note.GNU-stack\0.shstrtab";
static const uint32_t section_name[N_SECTIONS] = { 0, 1, 7, 15, 26, 34, 42, 58 };

static void align(str *out, size_t n) {
    while (out->n % n) str_addn(out, "", 1);
}

/* Appends a section's bytes. */
static void add(str *out, Elf64_Shdr *h, uint32_t type, uint64_t flags, size_t to, const void *data, size_t n) {
    align(out, to);
    *h = (Elf64_Shdr){
        .sh_name = h->sh_name, .sh_type = type, .sh_flags = flags, .sh_offset = out->n, .sh_size = n, .sh_addralign = to
    };
    str_addn(out, data, n);
}

static uint32_t add_name(str *names, const char *name, const char *end) { /* where it is */
    uint32_t at = (uint32_t)names->n;
    str_addf(names, "%s%s", name, end);
    str_addn(names, "", 1);
    return at;
}

static Elf64_Rela *relocations(const machine_code *code, arena *a) {
    Elf64_Rela *r = ARENA_ARRAY(a, Elf64_Rela, code->calls.n + 1);
    for (int i = 0; i < code->calls.n; i++) {
        const machine_call *c = &code->calls.at[i];
        r[i] = (Elf64_Rela){ c->offset, ELF64_R_INFO((uint64_t)(OWN_SYMBOLS + c->import), R_X86_64_GOTPCREL), -4 };
    }
    return r;
}

void emit_elf(const machine_code *code, size_t entry, const void *data, size_t n_data, const char *name, str *out) {
    Elf64_Shdr h[N_SECTIONS] = { 0 };
    str names;
    str_init(&names, out->a);
    str_addn(&names, "", 1);
    size_t n_symbols = OWN_SYMBOLS + (size_t)code->imports.n;
    Elf64_Sym *symbols = ARENA_ARRAY(out->a, Elf64_Sym, n_symbols);
    symbols[1] = (Elf64_Sym){ .st_name = add_name(&names, name, "_code"),
                              .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                              .st_other = STV_HIDDEN,
                              .st_shndx = TEXT,
                              .st_value = entry,
                              .st_size = code->n_text - entry };
    symbols[2] = (Elf64_Sym){ .st_name = add_name(&names, name, "_data"),
                              .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
                              .st_other = STV_HIDDEN,
                              .st_shndx = RODATA,
                              .st_size = n_data };
    for (int i = 0; i < code->imports.n; i++)
        symbols[OWN_SYMBOLS + i] = (Elf64_Sym){ .st_name = add_name(&names, code->imports.at[i].name, ""),
                                                .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_NOTYPE) };
    Elf64_Ehdr head = { .e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
                        .e_type = ET_REL,
                        .e_machine = EM_X86_64,
                        .e_version = EV_CURRENT,
                        .e_ehsize = sizeof head,
                        .e_shentsize = sizeof *h,
                        .e_shnum = N_SECTIONS,
                        .e_shstrndx = SHSTRTAB };
    str_addn(out, (const char *)&head, sizeof head);
    add(out, &h[TEXT], SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, CODE_ALIGN, code->bytes, code->n_bytes);
    add(out, &h[RODATA], SHT_PROGBITS, SHF_ALLOC, CODE_ALIGN, data, n_data);
    add(out, &h[RELOCATIONS], SHT_RELA, SHF_INFO_LINK, 8, relocations(code, out->a),
        (size_t)code->calls.n * sizeof(Elf64_Rela));
    h[RELOCATIONS].sh_link = SYMTAB, h[RELOCATIONS].sh_info = TEXT, h[RELOCATIONS].sh_entsize = sizeof(Elf64_Rela);
    add(out, &h[SYMTAB], SHT_SYMTAB, 0, 8, symbols, n_symbols * sizeof *symbols);
    h[SYMTAB].sh_link = STRTAB, h[SYMTAB].sh_info = 1, h[SYMTAB].sh_entsize = sizeof *symbols;
    add(out, &h[STRTAB], SHT_STRTAB, 0, 1, names.s, names.n);
    add(out, &h[STACK], SHT_PROGBITS, 0, 1, "", 0);
    add(out, &h[SHSTRTAB], SHT_STRTAB, 0, 1, section_names, sizeof section_names);
    for (int i = 0; i < N_SECTIONS; i++) h[i].sh_name = section_name[i];
    align(out, 8);
    head.e_shoff = out->n;
    memcpy(out->s, &head, sizeof head);
    str_addn(out, (const char *)h, sizeof h);
}

/* ---- a static library ---- */

/* A member's head: time, owner and group 0, so that equal contents give equal files. */
static void add_member(str *out, const char *name, const char *data, size_t n) {
    str_addf(out, "%-16s%-12d%-6d%-6d%-8s%-10zu`\n", name, 0, 0, 0, "644", n);
    str_addn(out, data, n);
    if (n % 2) str_add(out, "\n");
}

static void add_u32(str *out, uint32_t v) { /* the index has the highest byte first */
    const char bytes[] = { (char)(v >> 24), (char)(v >> 16), (char)(v >> 8), (char)v };
    str_addn(out, bytes, sizeof bytes);
}

enum { MEMBER_HEAD = 60, LONGEST_NAME = 13 }; /* with .o and a slash */

void emit_archive(const str *object, const char *name, str *out) {
    static const char *const symbols[] = { "code", "data" };
    static const char magic[] = "!<arch>\n";
    str index, names;
    str_init(&index, out->a), str_init(&names, out->a);
    for (size_t i = 0; i < COUNT_OF(symbols); i++) {
        str_addf(&names, "%s_%s", name, symbols[i]);
        str_addn(&names, "", 1);
    }
    size_t n_index = 4 + 4 * COUNT_OF(symbols) + names.n, first = sizeof magic - 1 + MEMBER_HEAD + n_index + n_index % 2;
    add_u32(&index, COUNT_OF(symbols));
    for (size_t i = 0; i < COUNT_OF(symbols); i++) add_u32(&index, (uint32_t)first);
    str_addn(&index, names.s, names.n);
    str_add(out, magic);
    add_member(out, "/", index.s, index.n);
    add_member(out, strlen(name) <= LONGEST_NAME ? arena_printf(out->a, "%s.o/", name) : "net.o/", object->s, object->n);
}
