#include "interpose.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name, *symbol;
    int since, own;
    void *wrapper;
} Entry;

static const Entry entries[] = {
#define CALL(id, symbol, since, own, ...) {#id, symbol, since, own, (void *)id},
    CALLS
#undef CALL
};

_Atomic(void *) real_calls[CALL_COUNT];

typedef void *(*Dlsym)(void *, const char *);
typedef void *(*Dlvsym)(void *, const char *, const char *);
typedef Result (*GetProcAddress)(const char *, void **, int, uint64_t);
typedef Result (*GetProcAddressV2)(const char *, void **, int, uint64_t, int *);

/* Written by the constructor before any other thread runs; the assembly below jumps through them. */
__attribute__((visibility("hidden"))) Dlsym intertoken_dlsym;
__attribute__((visibility("hidden"))) Dlvsym intertoken_dlvsym;
static int wanted;

/* What may run before a sanitizer's runtime has begun, which looks for symbols itself. */
#define EARLY __attribute__((no_sanitize("thread")))

EXPORT Result cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags);
EXPORT Result cuGetProcAddress_ptsz(const char *symbol, void **found, int version, uint64_t flags);
EXPORT Result cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status);
EXPORT Result cuGetProcAddress_v2_ptsz(const char *symbol, void **found, int version, uint64_t flags, int *status);

static const struct {
    const char *name;
    void *wrapper;
} finders[] = {
    {"cuGetProcAddress", (void *)cuGetProcAddress},
    {"cuGetProcAddress_ptsz", (void *)cuGetProcAddress_ptsz},
    {"cuGetProcAddress_v2", (void *)cuGetProcAddress_v2},
    {"cuGetProcAddress_v2_ptsz", (void *)cuGetProcAddress_v2_ptsz},
};

EARLY static void find_linker(void) {
#if defined(__x86_64__)
    const char *version = "GLIBC_2.2.5";
#else
    const char *version = "GLIBC_2.17";
#endif
    if (intertoken_dlsym) return;
    intertoken_dlvsym = (Dlvsym)dlvsym(RTLD_NEXT, "dlvsym", version);
    intertoken_dlsym = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", version);
}

__attribute__((constructor)) static void start(void) {
    find_linker();
    wanted = getenv("INTERTOKEN_LIGHT") != NULL;
    if (wanted) ring_announce();
}

void *interpose_driver(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) return NULL;
    void *found = intertoken_dlsym(driver, name);
    dlclose(driver); /* the count alone: whoever loaded it keeps it */
    return found;
}

void *interpose_find(enum Call call) {
    void *found = interpose_driver(entries[call].name), *none = NULL;
    if (found) atomic_compare_exchange_strong(&real_calls[call], &none, found);
    return atomic_load(&real_calls[call]);
}

/* Two functions of one library; a second library that has a call's name (another recorder's) is left alone. */
static int same_library(void *one, void *other) {
    Dl_info a, b;
    return dladdr(one, &a) && dladdr(other, &b) && a.dli_fbase == b.dli_fbase;
}

/* The wrapper of a call, once it knows the driver's function. */
static void *adopt(size_t call, void *found) {
    void *known = NULL;
    if (found == entries[call].wrapper) {
        found = interpose_driver(entries[call].name);
        if (!found) return NULL;
    }
    int is_first = atomic_compare_exchange_strong(&real_calls[call], &known, found);
    if (is_first || known == found || same_library(known, found)) return entries[call].wrapper;
    ring_count(COUNT_entries_left, 1);
    return found;
}

/* What dlsym(handle, name) is to give instead; NULL if it is none of ours. */
EARLY __attribute__((visibility("hidden"), used)) void *intertoken_found(void *handle, const char *name) {
    if (!wanted || !name || name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z') return NULL;
    for (size_t i = 0; i < sizeof finders / sizeof *finders; i++)
        if (strcmp(name, finders[i].name) == 0) {
            void *found = intertoken_dlsym(handle, name);
            return found == finders[i].wrapper && !interpose_driver(name) ? NULL : found ? finders[i].wrapper : NULL;
        }
    for (size_t i = 0; i < CALL_COUNT; i++)
        if (strcmp(name, entries[i].name) == 0) {
            void *found = intertoken_dlsym(handle, name);
            return found ? adopt(i, found) : NULL;
        }
    return NULL;
}

/* The linker asks for whom a symbol is sought (RTLD_NEXT) by the return address, so what is not ours is jumped to. */
#if defined(__x86_64__)
#define PASS(name, real)                                                                                              \
    __asm__(".text\n.globl " name "\n.type " name ", @function\n" name ":\n"                                          \
            "  endbr64\n  push %rdi\n  push %rsi\n  push %rdx\n"                                                      \
            "  mov " real "@GOTPCREL(%rip), %rax\n  cmpq $0, (%rax)\n  jne 0f\n  call intertoken_early\n0:\n"         \
            "  mov 16(%rsp), %rdi\n  mov 8(%rsp), %rsi\n  call intertoken_found\n"                                    \
            "  pop %rdx\n  pop %rsi\n  pop %rdi\n  test %rax, %rax\n  jne 1f\n"                                       \
            "  mov " real "@GOTPCREL(%rip), %rax\n  jmp *(%rax)\n1: ret\n.size " name ", .-" name "\n");
#elif defined(__aarch64__)
#define PASS(name, real)                                                                                              \
    __asm__(".text\n.globl " name "\n.type " name ", @function\n" name ":\n"                                          \
            "  stp x29, x30, [sp, #-48]!\n  stp x0, x1, [sp, #16]\n  str x2, [sp, #32]\n"                             \
            "  adrp x9, " real "\n  ldr x9, [x9, :lo12:" real "]\n  cbnz x9, 0f\n  bl intertoken_early\n0:\n"         \
            "  ldp x0, x1, [sp, #16]\n  bl intertoken_found\n"                                                        \
            "  mov x9, x0\n  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n  ldp x29, x30, [sp], #48\n"                 \
            "  cbnz x9, 1f\n  adrp x9, " real "\n  ldr x9, [x9, :lo12:" real "]\n  br x9\n"                           \
            "1: mov x0, x9\n  ret\n.size " name ", .-" name "\n");
#else
#error "the recorder knows x86-64 and aarch64"
#endif

/* Another library's constructor may look for symbols before ours ran. */
EARLY __attribute__((visibility("hidden"), used)) void intertoken_early(void) { find_linker(); }

PASS("dlsym", "intertoken_dlsym")

/* The call that a name of cuGetProcAddress means in a version, if the driver agrees that it is the same function. */
static void *wrapped(void *real, const char *symbol, int version, uint64_t flags, int own, void *found) {
    size_t best = CALL_COUNT;
    own |= (flags & PER_THREAD_DEFAULT_STREAM) != 0;
    for (size_t i = 0; i < CALL_COUNT; i++) {
        const Entry *e = &entries[i];
        if (strcmp(symbol, e->symbol) != 0 || e->since > version || e->own > own) continue;
        if (best == CALL_COUNT || e->own > entries[best].own ||
            (e->own == entries[best].own && e->since > entries[best].since))
            best = i;
    }
    if (best == CALL_COUNT) return found;
    void *same = NULL;
    if (((GetProcAddress)real)(symbol, &same, entries[best].since, flags) == SUCCESS && same == found)
        return adopt(best, found);
    ring_count(COUNT_entries_left, 1); /* an interface newer than ours */
    return found;
}

/* Asked through the first interface, which all drivers since 11.3 have. */
static void replace(const char *symbol, void **found, int version, uint64_t flags, int own) {
    if (!wanted || !symbol || !found || !*found || strncmp(symbol, "cu", 2) != 0) return;
    for (size_t i = 0; i < sizeof finders / sizeof *finders; i++)
        if (strcmp(symbol, finders[i].name) == 0) {
            int second = version >= 12000 || strstr(symbol, "_v2");
            own |= (flags & PER_THREAD_DEFAULT_STREAM) != 0 || strstr(symbol, "_ptsz");
            *found = finders[2 * second + own].wrapper;
            return;
        }
    void *first = interpose_driver(own ? "cuGetProcAddress_ptsz" : "cuGetProcAddress");
    if (!first) first = interpose_driver("cuGetProcAddress");
    if (first) *found = wrapped(first, symbol, version, flags, own, *found);
}

#define FINDER(name, own)                                                                                             \
    Result name(const char *symbol, void **found, int version, uint64_t flags) {                                      \
        GetProcAddress real = (GetProcAddress)interpose_driver(#name);                                                \
        Result result = real ? real(symbol, found, version, flags) : ERROR_NOT_SUPPORTED;                             \
        if (result == SUCCESS) replace(symbol, found, version, flags, own);                                           \
        return result;                                                                                                \
    }
#define FINDER_V2(name, own)                                                                                          \
    Result name(const char *symbol, void **found, int version, uint64_t flags, int *status) {                         \
        GetProcAddressV2 real = (GetProcAddressV2)interpose_driver(#name);                                            \
        Result result = real ? real(symbol, found, version, flags, status) : ERROR_NOT_SUPPORTED;                     \
        if (result == SUCCESS) replace(symbol, found, version, flags, own);                                           \
        return result;                                                                                                \
    }

FINDER(cuGetProcAddress, 0)
FINDER(cuGetProcAddress_ptsz, 1)
FINDER_V2(cuGetProcAddress_v2, 0)
FINDER_V2(cuGetProcAddress_v2_ptsz, 1)
