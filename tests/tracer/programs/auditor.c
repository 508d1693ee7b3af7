/* A library for LD_AUDIT, which is asked about every file and every symbol, and changes none. */
#define _GNU_SOURCE
#include <link.h>

unsigned la_version(unsigned version) { return version; }
unsigned la_objopen(struct link_map *file, Lmid_t where, uintptr_t *cookie) { return LA_FLG_BINDTO | LA_FLG_BINDFROM; }
#if __ELF_NATIVE_CLASS == 64
uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags,
                       const char *name) {
    return symbol->st_value;
}
#endif
