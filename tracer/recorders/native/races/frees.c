/* Memory that is freed, or no longer pinned, while a copy from or to it has not arrived; and contexts that end. */
#include "races.h"

enum { MOST = 8 };

static void look(enum Call call, uint64_t address) {
    uint64_t start = 0, bytes = 0;
    Row *rows[MOST];
    Inside before = inside();
    memory_of((void *)(uintptr_t)address, &start, &bytes);
    if (!start || !bytes || address - start >= bytes) start = address, bytes = 1;
    unsigned count = settings.witness ? witness_in_flight(start, bytes, rows, MOST) : 0;
    for (unsigned i = 0; i < count; i++) log_incident(call, rows[i], address);
    fetch_forget((void *)(uintptr_t)start, bytes);
    outside(before);
}

#define FREE(id, type)                                                                                                \
    Result id(type p) {                                                                                               \
        REAL(id, (type));                                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (p && races_on()) look(CALL_##id, (uint64_t)(uintptr_t)p);                                                 \
        return real(p);                                                                                               \
    }
FREE(cuMemFreeHost, void *)
FREE(cuMemHostUnregister, void *)
FREE(cuMemFree_v2, DevicePointer)

#define CONTEXT(id, type)                                                                                             \
    Result id(type c) {                                                                                               \
        REAL(id, (type));                                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (races_on()) witness_forget_context(), fetch_forget(NULL, 0);                                              \
        return real(c);                                                                                               \
    }
CONTEXT(cuCtxDestroy, Context)
CONTEXT(cuCtxDestroy_v2, Context)
CONTEXT(cuDevicePrimaryCtxReset, int)
CONTEXT(cuDevicePrimaryCtxReset_v2, int)
CONTEXT(cuDevicePrimaryCtxRelease, int)
CONTEXT(cuDevicePrimaryCtxRelease_v2, int)
