/* What was unloaded leaves its addresses: they are taken, so that it is loaded elsewhere the next time. */
#ifndef PROGRAMS_UNLOADED_H
#define PROGRAMS_UNLOADED_H

#include "cuda.h"
#include <link.h>
#include <sys/mman.h>

static char *address_of(void *library) {
    struct link_map *map = NULL;
    need(dlinfo(library, RTLD_DI_LINKMAP, &map) == 0, "dlinfo");
    return (char *)map->l_addr;
}

/* Nothing can be read or run there any more; where something is still loaded, it stays. */
static void take_addresses(char *from) {
    for (int page = 0; page < 64; page++)
        mmap(from + page * 4096l, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

#endif
