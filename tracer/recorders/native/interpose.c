#include "interpose.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "cupti.h"
#include "device.h"
#include "hot.h"

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

HOT_DATA _Atomic(void *) real_calls[CALL_COUNT];

typedef void *(*Dlsym)(void *, const char *);
typedef Result (*GetProcAddress)(const char *, void **, int, uint64_t);
typedef Result (*GetProcAddressV2)(const char *, void **, int, uint64_t, int *);

/* The next library's dlsym, for the program's look-ups, through which the assembly below jumps; and the linker's, for our
 * own. Set by the constructor before any other thread runs. */
__attribute__((visibility("hidden"))) Dlsym intertoken_dlsym;
static Dlsym linker_dlsym;
static int wanted;
static struct {
    _Atomic uintptr_t begin, end; /* of the driver in memory; 0: it is not loaded yet */
} driver_library;

/* For code that may run before a sanitizer's runtime is initialised, which itself looks up symbols. */
#define EARLY __attribute__((no_sanitize("thread", "address", "undefined")))

EXPORT Result cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
EXPORT Result cuGetProcAddress_ptsz(const char *symbol, void **function, int version, uint64_t flags);
EXPORT Result cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);
EXPORT Result cuGetProcAddress_v2_ptsz(const char *symbol, void **function, int version, uint64_t flags, int *status);

enum { FINDERS = 4 };
static const struct {
    const char *name;
    void *wrapper;
} finders[FINDERS] = {
    {"cuGetProcAddress", (void *)cuGetProcAddress},
    {"cuGetProcAddress_ptsz", (void *)cuGetProcAddress_ptsz},
    {"cuGetProcAddress_v2", (void *)cuGetProcAddress_v2},
    {"cuGetProcAddress_v2_ptsz", (void *)cuGetProcAddress_v2_ptsz},
};
static _Atomic(void *) real_finders[FINDERS];

EARLY static void find_linker(void) {
#if defined(__x86_64__)
    const char *version = "GLIBC_2.2.5";
#else
    const char *version = "GLIBC_2.17";
#endif
    if (intertoken_dlsym) return;
    linker_dlsym = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", version);
    intertoken_dlsym = (Dlsym)linker_dlsym(RTLD_NEXT, "dlsym");
    if (!intertoken_dlsym) intertoken_dlsym = linker_dlsym;
}

/* The driver stays loaded from now on (RTLD_NODELETE): we keep pointers into it, also while the program has closed it. */
static void *driver_function(const char *name) {
    void *function = linker_dlsym(RTLD_NEXT, name);
    void *driver = function ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    if (driver) {
        function = linker_dlsym(driver, name);
        dlclose(driver); /* only decrements the count */
    }
    if (function) dlerror(); /* clears that of the first look-up */
    return function;
}

/* Whether a library contains the address; if so, note where it lies. */
static int note_library(struct dl_phdr_info *library, size_t size, void *address) {
    uintptr_t begin = UINTPTR_MAX, end = 0, at = (uintptr_t)address;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        if (part->p_type != PT_LOAD) continue;
        uintptr_t from = library->dlpi_addr + part->p_vaddr;
        if (from < begin) begin = from;
        if (from + part->p_memsz > end) end = from + part->p_memsz;
    }
    if (at < begin || at >= end) return 0;
    atomic_store(&driver_library.end, end), atomic_store(&driver_library.begin, begin);
    return (void)size, 1;
}

/* Keep a library loaded, however the program has opened it. */
static void pin(void *address) {
    Dl_info info;
    void *library = dladdr(address, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) : NULL;
    if (library) dlclose(library);
}

/* Look up all that will be needed, when the program first looks something up in the driver: later look-ups would wait for
 * the linker's lock, which another thread may hold for as long as it loads a library. */
static void resolve(void) {
    if (atomic_load(&driver_library.begin)) return;
    void *function = driver_function("cuInit");
    if (!function) return;
    pin(function);
    for (size_t i = 0; i < CALL_COUNT; i++) {
        void *call = driver_function(entries[i].name), *none = NULL;
        if (call) atomic_compare_exchange_strong(&real_calls[i], &none, call);
    }
    for (size_t i = 0; i < FINDERS; i++) atomic_store(&real_finders[i], driver_function(finders[i].name));
    device_find();
    dl_iterate_phdr(note_library, function);
}

__attribute__((constructor)) static void start(void) {
    find_linker();
    wanted = getenv("INTERTOKEN_LIGHT") != NULL;
    if (wanted) ring_announce();
    ring_wraps = wanted && !cupti_alone();
    cupti_find_endings(linker_dlsym(RTLD_NEXT, "_exit"), linker_dlsym(RTLD_NEXT, "_Exit"));
    if (ring_wraps && linker_dlsym(RTLD_NEXT, "cuInit")) resolve(); /* the program is linked to it */
    if (wanted) dlerror();
}

int interpose_wanted(void) { return wanted; }

void *interpose_driver(const char *name) { return driver_function(name); }

/* A program that calls the driver by linking alone comes here first. */
void *interpose_find(enum Call call) {
    void *function, *none = NULL;
    resolve();
    if ((function = atomic_load(&real_calls[call]))) return function;
    function = driver_function(entries[call].name);
    if (function) atomic_compare_exchange_strong(&real_calls[call], &none, function);
    return atomic_load(&real_calls[call]);
}

static int is_drivers(void *function) {
    uintptr_t at = (uintptr_t)function;
    return at >= atomic_load(&driver_library.begin) && at < atomic_load(&driver_library.end);
}

/* The wrapper for the function that the program found, if the wrapper calls the same one; otherwise that function. */
static void *wrapper_for(void *function, void *wrapper, void *real) {
    if (function == wrapper || function == real || (is_drivers(function) && is_drivers(real))) return wrapper;
    ring_count(COUNT_entries_left, 1);
    return function;
}

/* The same for a call. A driver function without an exported name is registered here. */
static void *adopt(size_t call, void *function) {
    void *none = NULL;
    if (!atomic_load(&real_calls[call]) && is_drivers(function))
        atomic_compare_exchange_strong(&real_calls[call], &none, function);
    return wrapper_for(function, entries[call].wrapper, atomic_load(&real_calls[call]));
}

/* The wrapper of a call or finder with that name; NULL if it is neither. */
EARLY static void *wrapper_of(const char *name, size_t *call) {
    *call = CALL_COUNT;
    if (!name || name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z') return NULL;
    for (size_t i = 0; i < FINDERS; i++)
        if (strcmp(name, finders[i].name) == 0) return finders[i].wrapper;
    for (*call = 0; *call < CALL_COUNT; ++*call)
        if (strcmp(name, entries[*call].name) == 0) return entries[*call].wrapper;
    return NULL;
}

#define NOTHING ((void *)1) /* the symbol does not exist: the program gets NULL */

/* The result of dlsym(handle, name); NULL leaves it to the linker. A library that looks up the next definition
 * (RTLD_NEXT) itself interposes the driver and calls the result: our wrapper would lead back to it. Where nobody but us has
 * the function, it does not exist. */
EARLY __attribute__((visibility("hidden"), used)) void *intertoken_found(void *handle, const char *name) {
    size_t call;
    void *wrapper = wrapper_of(name, &call), *function;
    if (!wrapper) return NULL;
    if (handle == RTLD_NEXT && driver_function(name)) return NULL;
    function = handle == RTLD_NEXT ? wrapper : intertoken_dlsym(handle, name);
    if (!function) return NULL;
    if (function == wrapper && !linker_dlsym(RTLD_NEXT, name)) return NOTHING; /* dlerror says so */
    if (!ring_wraps) return NULL;
    resolve();
    return call < CALL_COUNT ? adopt(call, function) : wrapper_for(function, wrapper, driver_function(name));
}

/* For RTLD_NEXT the linker identifies the caller by its return address, so other look-ups jump to the real function. */
#if defined(__x86_64__)
#define PASS(name, real)                                                                                              \
    __asm__(".text\n.globl " name "\n.type " name ", @function\n" name ":\n"                                          \
            "  endbr64\n  push %rdi\n  push %rsi\n  push %rdx\n"                                                      \
            "  mov " real "@GOTPCREL(%rip), %rax\n  cmpq $0, (%rax)\n  jne 0f\n  call intertoken_early\n0:\n"         \
            "  mov 16(%rsp), %rdi\n  mov 8(%rsp), %rsi\n  call intertoken_found\n"                                    \
            "  pop %rdx\n  pop %rsi\n  pop %rdi\n  cmp $1, %rax\n  ja 2f\n  je 1f\n"                                  \
            "  mov " real "@GOTPCREL(%rip), %rax\n  jmp *(%rax)\n1: xor %eax, %eax\n2: ret\n"                         \
            ".size " name ", .-" name "\n");
#elif defined(__aarch64__)
#define PASS(name, real)                                                                                              \
    __asm__(".text\n.globl " name "\n.type " name ", @function\n" name ":\n"                                          \
            "  stp x29, x30, [sp, #-48]!\n  stp x0, x1, [sp, #16]\n  str x2, [sp, #32]\n"                             \
            "  adrp x9, " real "\n  ldr x9, [x9, :lo12:" real "]\n  cbnz x9, 0f\n  bl intertoken_early\n0:\n"         \
            "  ldp x0, x1, [sp, #16]\n  bl intertoken_found\n"                                                        \
            "  mov x9, x0\n  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n  ldp x29, x30, [sp], #48\n"                 \
            "  cmp x9, #1\n  b.hi 2f\n  b.eq 1f\n  adrp x9, " real "\n  ldr x9, [x9, :lo12:" real "]\n  br x9\n"      \
            "1: mov x9, #0\n2: mov x0, x9\n  ret\n.size " name ", .-" name "\n");
#else
#error "the recorder supports only x86-64 and aarch64"
#endif

/* Another library's constructor may look up symbols before ours has run. */
EARLY __attribute__((visibility("hidden"), used)) void intertoken_early(void) { find_linker(); }

PASS("dlsym", "intertoken_dlsym")

/* Whether a function for the per-thread default stream is requested; `own` if the flags do not say. */
static int is_own(uint64_t flags, int own) {
    return flags & PER_THREAD_DEFAULT_STREAM ? 1 : flags & LEGACY_STREAM ? 0 : own;
}

/* The call for a symbol and version of cuGetProcAddress, if the driver returns the same function for it. */
static void *wrapped(void *real, const char *symbol, int version, uint64_t flags, int own, void *function) {
    size_t best = CALL_COUNT;
    for (size_t i = 0; i < CALL_COUNT; i++) {
        const Entry *e = &entries[i];
        if (strcmp(symbol, e->symbol) != 0 || e->since > version || e->own > own) continue;
        if (best == CALL_COUNT || e->own > entries[best].own ||
            (e->own == entries[best].own && e->since > entries[best].since))
            best = i;
    }
    if (best == CALL_COUNT) return function;
    void *same = NULL;
    if (((GetProcAddress)real)(symbol, &same, entries[best].since, flags) == SUCCESS && same == function)
        return adopt(best, function);
    ring_count(COUNT_entries_left, 1); /* an interface newer than ours */
    return function;
}

static void *real_finder(size_t at) {
    void *function = atomic_load(&real_finders[at]);
    return function ? function : driver_function(finders[at].name);
}

/* Uses the first version of the interface, which all drivers since 11.3 have. */
static void replace(const char *symbol, void **function, int version, uint64_t flags, int own) {
    if (!ring_wraps || !symbol || !function || !*function || strncmp(symbol, "cu", 2) != 0) return;
    resolve();
    for (size_t i = 0; i < FINDERS; i++)
        if (strcmp(symbol, finders[i].name) == 0) {
            int second = version >= 12000 || strstr(symbol, "_v2");
            *function = finders[2 * second + (is_own(flags, own) || strstr(symbol, "_ptsz"))].wrapper;
            return;
        }
    void *first = real_finder(own ? 1 : 0);
    if (!first) first = real_finder(0);
    if (first) *function = wrapped(first, symbol, version, flags, is_own(flags, own), *function);
}

#define FINDER(name, at, own)                                                                                         \
    Result name(const char *symbol, void **function, int version, uint64_t flags) {                                   \
        GetProcAddress real = (GetProcAddress)real_finder(at);                                                        \
        Result result = real ? real(symbol, function, version, flags) : ERROR_NOT_SUPPORTED;                          \
        if (result == SUCCESS) replace(symbol, function, version, flags, own);                                        \
        return result;                                                                                                \
    }
#define FINDER_V2(name, at, own)                                                                                      \
    Result name(const char *symbol, void **function, int version, uint64_t flags, int *status) {                      \
        GetProcAddressV2 real = (GetProcAddressV2)real_finder(at);                                                    \
        Result result = real ? real(symbol, function, version, flags, status) : ERROR_NOT_SUPPORTED;                  \
        if (result == SUCCESS) replace(symbol, function, version, flags, own);                                        \
        return result;                                                                                                \
    }

FINDER(cuGetProcAddress, 0, 0)
FINDER(cuGetProcAddress_ptsz, 1, 1)
FINDER_V2(cuGetProcAddress_v2, 2, 0)
FINDER_V2(cuGetProcAddress_v2_ptsz, 3, 1)
