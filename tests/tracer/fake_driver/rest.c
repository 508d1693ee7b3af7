/* The calls that driver.c does not have: each says its name and does nothing; and how all of them are found. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../tracer/recorders/native/calls.h"

void say(const char *what);

Result called(const char *name);
#define CALL(id, symbol, since, own, params, ...) __attribute__((weak)) Result id params { return called(#id); }
static const char *fails;
__attribute__((constructor)) static void ask(void) { fails = getenv("FAKE_FAILS"); }
Result called(const char *name) {
    say(name);
    return fails && strcmp(fails, name) == 0 ? 700 : SUCCESS;
}
CALLS
#undef CALL

static const struct {
    const char *symbol;
    int since, own;
    void *function;
} table[] = {
#define CALL(id, symbol, since, own, ...) {symbol, since, own, (void *)id},
    CALLS
#undef CALL
};

Result cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
static Result later(void) { return say("later"), SUCCESS; } /* an interface that nobody knows yet */

Result cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags) {
    int own = (flags & PER_THREAD_DEFAULT_STREAM) != 0, best = -1;
    *found = NULL;
    if (strcmp(symbol, "cuGetProcAddress") == 0)
        return *found = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress, SUCCESS;
    for (int i = 0; i < CALL_COUNT; i++)
        if (strcmp(symbol, table[i].symbol) == 0 && table[i].since <= version && table[i].own <= own &&
            (best < 0 || table[i].own > table[best].own ||
             (table[i].own == table[best].own && table[i].since > table[best].since)))
            best = i;
    if (version >= 99000) return *found = (void *)later, SUCCESS;
    if (best < 0) return 500;
    return *found = table[best].function, SUCCESS;
}
Result cuGetProcAddress_ptsz(const char *symbol, void **found, int version, uint64_t flags) {
    return cuGetProcAddress(symbol, found, version, flags & LEGACY_STREAM ? flags : flags | PER_THREAD_DEFAULT_STREAM);
}
Result cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    Result result = cuGetProcAddress(symbol, found, version, flags);
    if (status) *status = result ? 1 : 0;
    return result;
}
Result cuGetProcAddress_v2_ptsz(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    Result result = cuGetProcAddress_ptsz(symbol, found, version, flags);
    if (status) *status = result ? 1 : 0;
    return result;
}
