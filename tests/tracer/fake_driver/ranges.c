/* A program with ranges and marks of its own, which stands for NVTX, too: it gives the library that NVTX_INJECTION64_PATH
 * names its tables of functions, and then calls what that put there.
 *
 * argv[1]: "all" of them; "pauses" in between, as another window says; "many", argv[2] ranges with texts of their own.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    union {
        uint64_t whole;
        double real;
        int32_t number;
    } payload;
    int32_t message_type;
    const void *message;
} Attributes;

static void *core[16], *core2[16], **core_table[16], **core2_table[16];

static int table(int module, void ****found, unsigned *count) {
    *found = module == 1 ? core_table : core2_table;
    *count = 16;
    return module == 1 || module == 5;
}
static const struct {
    size_t size;
    int (*table)(int, void ****, unsigned *);
} callbacks = {sizeof callbacks, table};
static const void *tables(uint32_t id) { return id == 1 ? &callbacks : NULL; }

#define CORE(at, type) ((type)core[at])
#define CORE2(at, type) ((type)core2[at])
typedef int (*PushA)(const char *);
typedef int (*PushW)(const wchar_t *);
typedef int (*PushEx)(void *, const Attributes *);
typedef int (*Pop)(void);
typedef int (*PopOf)(void *);
typedef uint64_t (*StartA)(const char *);
typedef void (*End)(uint64_t);
typedef void (*MarkEx)(void *, const Attributes *);
typedef void *(*Named)(const char *);
typedef void *(*Registered)(void *, const char *);

static void *ends(void *range) { return CORE(7, End)((uint64_t)(uintptr_t)range), NULL; }

static void all(void) {
    pthread_t thread;
    void *domain = CORE2(12, Named)("engine"), *text = CORE2(10, Registered)(domain, "step");
    Attributes step = {3, sizeof step, 7, 1, 0xff00ff00, 5, 0, {.number = -3}, 3, text};
    Attributes wide = {3, sizeof wide, 0, 0, 0, 3, 0, {.real = 2.5}, 2, L"m\u00fcde"};
    uint64_t range = CORE(5, StartA)("request");
    for (int i = 0; i < 2; i++) {
        CORE2(4, PushEx)(domain, &step), CORE(9, PushA)("outer"), CORE(10, PushW)(L"inner");
        CORE(11, Pop)(), CORE(11, Pop)(), CORE2(5, PopOf)(domain);
    }
    CORE2(1, MarkEx)(NULL, &wide);
    pthread_create(&thread, NULL, ends, (void *)(uintptr_t)range), pthread_join(thread, NULL);
    CORE(11, Pop)(); /* of nothing */
    CORE(9, PushA)("open");
}

static void pauses(int (*start)(void), int (*stop)(void)) {
    start(), CORE(9, PushA)("first"), stop();
    CORE(11, Pop)(), CORE(9, PushA)("unseen");
    start(), CORE(11, Pop)(), CORE(9, PushA)("second"), CORE(11, Pop)();
}

int main(int argc, char **argv) {
    const char *path = getenv("NVTX_INJECTION64_PATH");
    for (int i = 0; i < 16; i++) core_table[i] = &core[i], core2_table[i] = &core2[i];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *listener = path ? dlopen(path, RTLD_NOW) : NULL;
    int (*listen)(const void *(*)(uint32_t)) = listener ? dlsym(listener, "InitializeInjectionNvtx2") : NULL;
    if (!driver || !listen || !listen(tables)) return puts("nobody listens"), 0;
    CORE(9, PushA)("before CUDA"), CORE(11, Pop)();
    ((int (*)(void *))dlsym(driver, "cuStreamSynchronize"))(NULL);
    if (strcmp(argv[1], "all") == 0) all();
    if (strcmp(argv[1], "pauses") == 0) pauses(dlsym(driver, "cuProfilerStart"), dlsym(driver, "cuProfilerStop"));
    for (int i = 0; strcmp(argv[1], "many") == 0 && i < atoi(argv[2]); i++) {
        char text[32];
        snprintf(text, sizeof text, "step %d of many, of its own", i);
        CORE(9, PushA)(text), CORE(11, Pop)();
    }
    return 0;
}
