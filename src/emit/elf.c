/* elf.c - machine code and constant data as a relocatable object of ELF for x86-64, with a symbol each. In:
 * position-independent code, bytes. Out: the bytes of the file. */
#include "emit/emit.h"

#include <elf.h>

enum { TEXT = 1, RODATA, SYMTAB, STRTAB, STACK, SHSTRTAB, N_SECTIONS, CODE_ALIGN = 64 };

static const char section_names[] = "\0.text\0.rodata\0.symtab\0.strtab\0.note.GNU-stack\0.shstrtab";
static const uint32_t section_name[N_SECTIONS] = { 0, 1, 7, 15, 23, 31, 47 };

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

void emit_elf(const machine_code *code, size_t entry, const void *data, size_t n_data, const char *name, str *out) {
    Elf64_Shdr h[N_SECTIONS] = { 0 };
    str names;
    str_init(&names, out->a);
    str_addn(&names, "", 1);
    str_addf(&names, "%s_code", name);
    str_addn(&names, "", 1);
    uint32_t second = (uint32_t)names.n;
    str_addf(&names, "%s_data", name);
    str_addn(&names, "", 1);
    Elf64_Sym symbols[3] = { { 0 },
                             { .st_name = 1,
                               .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                               .st_other = STV_HIDDEN,
                               .st_shndx = TEXT,
                               .st_value = entry,
                               .st_size = code->n_text - entry },
                             { .st_name = second,
                               .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
                               .st_other = STV_HIDDEN,
                               .st_shndx = RODATA,
                               .st_size = n_data } };
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
    add(out, &h[SYMTAB], SHT_SYMTAB, 0, 8, symbols, sizeof symbols);
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
