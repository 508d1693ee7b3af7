/* The names of kernels, from the calls with which programs look them up. The file RING.names has a line for each new
 * name of a handle, fields separated by tabs: the number of records before it, the handle, and the name, or after "="
 * the handle of the kernel that it is a function of. `tracer/recorders/symbols.py` reads it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "files.h"
#include "held.h"
#include "hot.h"
#include "interpose.h"

enum { SLOTS = 1 << 14, MOST = 3 * SLOTS / 4, NAME_BYTES = 4000 };

static _Atomic uint64_t known[SLOTS]; /* keys of what is in the file; 0 for an empty place */
static unsigned used;
static FilesText file = {.suffix = ".names"};
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

void names_fork(void) {
    const pthread_mutex_t again = PTHREAD_MUTEX_INITIALIZER;
    writing = again;
    if (used) memset(known, 0, sizeof known);
    used = 0;
    file = (FilesText){.suffix = file.suffix};
}

/* A key of a handle and what marks its name: a handle may be that of another kernel after its module was unloaded. */
static uint64_t key_of(uint64_t handle, uint64_t mark) {
    uint64_t key = handle * UINT64_C(0x9e3779b97f4a7c15) ^ mark;
    key = (key ^ key >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return (key ^ key >> 32) | 1;
}

static uint64_t text_mark(const char *name) {
    uint64_t mark = UINT64_C(0xcbf29ce484222325);
    for (; name && *name; name++) mark = (mark ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return mark;
}

/* The place of a key, or the empty one for it. */
static unsigned place_of(uint64_t key) {
    unsigned slot = (unsigned)(key >> 40) % SLOTS;
    for (uint64_t seen; (seen = atomic_load_explicit(&known[slot], memory_order_relaxed)) && seen != key;)
        slot = (slot + 1) % SLOTS;
    return slot;
}

COLD static void add(uint64_t key, uint64_t handle, uint64_t kernel, const char *name) {
    static char text[NAME_BYTES + 80]; /* under the lock; not on a stack that may be small */
    Held held;
    hold(&held);
    pthread_mutex_lock(&writing);
    unsigned long long written = atomic_load_explicit(&ring.header->written, memory_order_relaxed);
    int length = name ? snprintf(text, sizeof text, "%llu\t%llx\t%.*s", written, (unsigned long long)handle, NAME_BYTES,
                                 name)
                      : snprintf(text, sizeof text, "%llu\t%llx\t=%llx", written, (unsigned long long)handle,
                                 (unsigned long long)kernel);
    for (char *at = strchr(strchr(text, '\t') + 1, '\t') + 1; at < text + length; at++)
        if ((unsigned char)*at < ' ' || *at == 127) *at = '?';
    text[length] = '\n';
    unsigned slot = place_of(key);
    if (!known[slot] && used < MOST && files_append(&file, text, (size_t)length + 1)) {
        used++;
        atomic_store_explicit(&known[slot], key, memory_order_relaxed);
    } else if (!known[slot]) ring_count(COUNT_names_left, 1);
    pthread_mutex_unlock(&writing);
    release(&held);
}

/* What a call has told of a function or kernel: its name, or whose function it is. */
static void keep(Function handle, Function kernel, const char *name, uint64_t mark) {
    if (!handle || (!kernel && (!name || !*name)) || !ring_there()) return;
    uint64_t key = key_of((uintptr_t)handle, mark);
    if (!atomic_load_explicit(&known[place_of(key)], memory_order_relaxed))
        add(key, (uintptr_t)handle, (uintptr_t)kernel, name);
}

/* `mark` is the text of the name where the program gives it, and its address where the driver keeps it. */
#define LOOK_UP(id, params, args, handle, kernel, name, mark)                                                         \
    Result id params {                                                                                                \
        Result(*real) params = (Result(*) params)real_call(CALL_##id);                                                \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        Result result = real args;                                                                                    \
        if (result == SUCCESS) keep(handle, kernel, name, mark);                                                      \
        return result;                                                                                                \
    }

LOOK_UP(cuModuleGetFunction, (Function *f, Module m, const char *name), (f, m, name), f ? *f : NULL, NULL, name,
        text_mark(name))
LOOK_UP(cuLibraryGetKernel, (Function *k, Library l, const char *name), (k, l, name), k ? *k : NULL, NULL, name,
        text_mark(name))
LOOK_UP(cuKernelGetFunction, (Function *f, Function k), (f, k), f ? *f : NULL, k, NULL, (uintptr_t)k)
LOOK_UP(cuKernelGetName, (const char **name, Function k), (name, k), k, NULL, name ? *name : NULL,
        name ? (uintptr_t)*name : 0)
