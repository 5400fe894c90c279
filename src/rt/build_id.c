/* build_id.c - the note that the linker leaves in the object that this code is in: libtenon.so, or the program that holds the
 * static library. */
#include "rt/build_id.h"

#include <link.h>
#include <stdint.h>
#include <string.h>

extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden"), weak)); /* the linker defines it */

/* name, descriptor: each is padded to 4 bytes. */
static bool find_note(const unsigned char *at, size_t n, unsigned char out[BUILD_ID_BYTES]) {
    while (n >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) h;
        memcpy(&h, at, sizeof h);
        size_t name = (h.n_namesz + (size_t)3) & ~(size_t)3, desc = (h.n_descsz + (size_t)3) & ~(size_t)3;
        if (name > n - sizeof h || desc > n - sizeof h - name) return false;
        if (h.n_type == NT_GNU_BUILD_ID && h.n_namesz == 4 && !memcmp(at + sizeof h, "GNU", 4) && h.n_descsz) {
            memcpy(out, at + sizeof h + name, h.n_descsz < BUILD_ID_BYTES ? h.n_descsz : BUILD_ID_BYTES);
            return true;
        }
        at += sizeof h + name + desc, n -= sizeof h + name + desc;
    }
    return false;
}

bool build_id(unsigned char out[BUILD_ID_BYTES]) {
    const ElfW(Ehdr) *e = &__ehdr_start;
    memset(out, 0, BUILD_ID_BYTES);
    if (!e) return false;
    const unsigned char *base = (const unsigned char *)e;
    ElfW(Phdr) h;
    ElfW(Addr) first = 0; /* the address that the object's head would have */
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < e->e_phnum; i++) {
            memcpy(&h, base + e->e_phoff + (size_t)i * e->e_phentsize, sizeof h);
            if (!pass && h.p_type == PT_LOAD && h.p_offset == 0) first = h.p_vaddr;
            if (pass && h.p_type == PT_NOTE && find_note(base + (h.p_vaddr - first), h.p_memsz, out)) return true;
        }
    return false;
}
