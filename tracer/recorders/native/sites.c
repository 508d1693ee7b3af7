/* The file RING.sites has a line per function of a site, the innermost first, fields separated by tabs:
 *   site, offset of the return address in its file, file
 * `tracer/recorders/symbols.py` reads it, and finds the functions. Stacks are unwound as for C++ exceptions, without
 * frame pointers. Nothing here waits for a thread that loads a library.
 */
#include "sites.h"

#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "held.h"

#define WANTED "INTERTOKEN_LIGHT_SITES"
enum { MOST = (1 << (32 - SITE_SHIFT)) - 1, SLOTS = 4096, DEPTH = 32, PATH_BYTES = 512 };

static struct {
    _Atomic uint64_t key; /* of the stack; 0 for an empty place. Written last */
    uint32_t site;
} table[SLOTS];

static uint32_t used;
static char program[PATH_BYTES];  /* the file of the program */
static FilesText text_file = {.suffix = ".sites"};
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

int sites_start(void) {
    void *first[1];
    if (!getenv(WANTED)) return 0;
    backtrace(first, 1); /* loads the unwinder */
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    return 1;
}

void sites_fork(void) {
    pthread_mutex_t again = PTHREAD_MUTEX_INITIALIZER;
    writing = again;
    if (used) memset(table, 0, sizeof table);
    used = 0;
    text_file = (FilesText){.suffix = text_file.suffix};
}

typedef struct {
    void *const *stack;
    int depth;
    struct {
        uintptr_t base;
        const char *file; /* NULL: of no library */
        int is_own;
    } of[DEPTH];
} Files;

/* Note of which addresses a library is the file. */
static int note(struct dl_phdr_info *library, size_t size, void *given) {
    Files *files = given;
    uintptr_t own = (uintptr_t)sites_start, begin = UINTPTR_MAX;
    int is_own = 0, is_of[DEPTH] = {0};
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        if (part->p_type != PT_LOAD) continue;
        uintptr_t from = library->dlpi_addr + part->p_vaddr;
        if (from < begin) begin = from;
        is_own |= own - from < part->p_memsz;
        for (int at = 0; at < files->depth; at++) is_of[at] |= (uintptr_t)files->stack[at] - 1 - from < part->p_memsz;
    }
    for (int at = 0; at < files->depth; at++)
        if (is_of[at]) {
            files->of[at].base = begin & ~(uintptr_t)4095;
            files->of[at].file = library->dlpi_name[0] == '/' ? library->dlpi_name : program;
            files->of[at].is_own = is_own;
        }
    return (void)size, 0;
}

static void write_stack(uint32_t site, void *const *stack, int depth) {
    static char text[DEPTH * (PATH_BYTES + 64)]; /* under the lock */
    static Files files;
    files = (Files){stack, depth, {{0}}};
    size_t length = 0;
    int i = 0;
    dl_iterate_phdr(note, &files);
    while (i < depth && !files.of[i].is_own) i++; /* a library that interposes backtrace comes first */
    for (; i < depth; i++) {
        if (!files.of[i].file || files.of[i].is_own) continue;
        length += (size_t)snprintf(text + length, 64, "%u\t%lu\t", site,
                                   (unsigned long)((uintptr_t)stack[i] - files.of[i].base));
        for (const char *at = files.of[i].file; *at && at < files.of[i].file + PATH_BYTES - 1; at++)
            text[length++] = (unsigned char)*at < ' ' || *at == 127 ? '?' : *at;
        text[length++] = '\n';
    }
    files_append(&text_file, text, length);
}

/* The place of a stack in the table, or the empty one for it. */
static unsigned place_of(uint64_t key) {
    unsigned slot = (unsigned)(key >> 32) % SLOTS;
    for (uint64_t seen; (seen = atomic_load_explicit(&table[slot].key, memory_order_acquire)) && seen != key;)
        slot = (slot + 1) % SLOTS;
    return slot;
}

static uint32_t add(uint64_t key, void *const *stack, int depth) {
    uint32_t site = 0;
    Held held;
    if (pthread_mutex_trylock(&writing)) return 0; /* another thread adds one: this call has none */
    hold(&held);
    unsigned slot = place_of(key);
    if (table[slot].key) site = table[slot].site;
    else if (used < MOST) {
        site = ++used;
        write_stack(site, stack, depth);
        table[slot].site = site;
        atomic_store_explicit(&table[slot].key, key, memory_order_release);
    }
    pthread_mutex_unlock(&writing);
    release(&held);
    return site;
}

uint32_t sites_here(void) {
    void *stack[DEPTH];
    int depth = backtrace(stack, DEPTH);
    uint64_t key = UINT64_C(1469598103934665603);
    for (int i = 0; i < depth; i++) key = (key ^ (uintptr_t)stack[i]) * UINT64_C(0x9e3779b97f4a7c15), key ^= key >> 29;
    key |= 1;
    unsigned slot = place_of(key);
    uint32_t site = table[slot].key ? table[slot].site : add(key, stack, depth);
    return site << SITE_SHIFT;
}
