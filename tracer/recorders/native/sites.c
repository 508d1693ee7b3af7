/* The file RING.sites has a line per function of a site, the innermost first, fields separated by tabs:
 *   site, offset of the return address in its file, symbol (if the linker knows it), file
 * `tracer/recorders/light_sites.py` reads it. Stacks are unwound as for C++ exceptions, without frame pointers.
 */
#include "sites.h"

#include <dlfcn.h>
#include <execinfo.h>
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
static void *own;                 /* base address of this library */
static char program[PATH_BYTES];  /* the file of the program */
static FilesText text_file = {.suffix = ".sites"};
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

int sites_start(void) {
    Dl_info found;
    void *first[1];
    if (!getenv(WANTED)) return 0;
    backtrace(first, 1); /* loads the unwinder */
    own = dladdr((void *)sites_start, &found) ? found.dli_fbase : NULL;
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

static void write_stack(uint32_t site, void *const *stack, int depth) {
    static char text[DEPTH * (PATH_BYTES + 256)]; /* under the lock */
    size_t length = 0;
    Dl_info found;
    for (int i = 0; i < depth; i++) {
        if (!dladdr((char *)stack[i] - 1, &found) || !found.dli_fname || found.dli_fbase == own) continue;
        const char *file = found.dli_fname[0] == '/' ? found.dli_fname : program;
        const char *symbol = found.dli_sname ? found.dli_sname : "";
        length += (size_t)snprintf(text + length, PATH_BYTES + 256, "%u\t%lu\t%.190s\t%.*s\n", site,
                                   (unsigned long)((char *)stack[i] - (char *)found.dli_fbase), symbol,
                                   PATH_BYTES - 1, file);
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
