/* CUPTI in a program with as little of ours as possible: who crashes with this crashes by CUPTI or by the program.
 *
 * The driver loads it within cuInit (CUDA_INJECTION64_PATH). It enables the kinds of activity in $PLAIN_KINDS, numbers
 * separated by commas, takes every buffer and counts its bytes. It reads no record, starts no thread and wraps no call.
 * At the end of the program a line with the number of buffers and bytes goes to stderr.
 *
 * Build: cc -O2 -shared -fPIC -o libplain.so plain_injection.c -ldl
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER_BYTES = 1 << 20, FLUSH_FORCED = 1 };

static int (*flush)(uint32_t);
static unsigned long long buffers, bytes;

static void request(uint8_t **buffer, size_t *size, size_t *most_records) {
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *most_records = 0;
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    __atomic_fetch_add(&buffers, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&bytes, valid, __ATOMIC_RELAXED);
    free(buffer);
}

static void end(void) {
    flush(FLUSH_FORCED);
    fprintf(stderr, "plain injection: %llu buffers, %llu bytes\n", buffers, bytes);
}

int InitializeInjection(void) {
    const char *path = getenv("PLAIN_CUPTI"), *kinds = getenv("PLAIN_KINDS");
    void *library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD); /* the program's own, if it has one */
    if (!library) library = dlopen("libcupti.so.12", RTLD_NOW | RTLD_NOLOAD);
    if (!library) library = dlopen(path ? path : "libcupti.so", RTLD_NOW);
    if (!library) return fprintf(stderr, "plain injection: %s\n", dlerror()), 1;
    int (*take)(void *, void *) = dlsym(library, "cuptiActivityRegisterCallbacks");
    int (*enable)(int) = dlsym(library, "cuptiActivityEnable");
    int (*get_version)(uint32_t *) = dlsym(library, "cuptiGetVersion");
    flush = dlsym(library, "cuptiActivityFlushAll");
    uint32_t version = 0;
    if (!take || !enable || !flush || !get_version || get_version(&version) || take(request, complete)) return 1;
    for (char *at = (char *)kinds; at && *at; at += *at == ',') {
        int kind = (int)strtol(at, &at, 10), result = enable(kind);
        if (result) fprintf(stderr, "plain injection: kind %d: error %d\n", kind, result);
    }
    fprintf(stderr, "plain injection: CUPTI %u, kinds %s\n", version, kinds ? kinds : "none");
    atexit(end);
    return 1;
}
