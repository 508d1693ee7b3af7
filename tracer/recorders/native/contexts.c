/* Calls that destroy contexts: anything loaded into a context must not be used in a later one with the same handle. And
 * calls with which a program starts and stops a profiler; on request they open and close the recording. */
#include "clock.h"
#include "device.h"
#include "interpose.h"
#include "stamps.h"

static void write_call(enum Call call, uint64_t begin, uint64_t end, Result result) {
    Record record = {.begin = begin, .end = end, .call = (uint16_t)call, .result = (uint16_t)result,
                     .context = NO_CONTEXT};
    if (recording()) ring_write(&record);
}

/* Forget the context before the call: another thread may get the same handle right after it. */
#define DESTROY(id)                                                                                                   \
    Result id(Context c) {                                                                                            \
        Result (*real)(Context) = (Result(*)(Context))real_call(CALL_##id);                                           \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!ring_there()) return real(c);                                                                            \
        if (c) stamps_end_all(device_of(c)), clock_hold_context(device_of(c)), device_forget(c), clock_release();     \
        uint64_t begin = ring_now();                                                                                  \
        Result result = real(c);                                                                                      \
        write_call(CALL_##id, begin, ring_now(), result);                                                             \
        return result;                                                                                                \
    }

#define PRIMARY(id)                                                                                                   \
    Result id(int device) {                                                                                           \
        Result (*real)(int) = (Result(*)(int))real_call(CALL_##id);                                                   \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!ring_there()) return real(device);                                                                       \
        for (unsigned at = 0, count = device_count(); at < count; at++)                                               \
            if (ring.header->contexts[at].device == device) stamps_end_all((uint8_t)at);                              \
        clock_hold_device(device);                                                                                    \
        uint64_t begin = ring_now();                                                                                  \
        Result result = real(device);                                                                                 \
        uint64_t end = ring_now();                                                                                    \
        device_forget_primary(device);                                                                                \
        clock_release();                                                                                              \
        write_call(CALL_##id, begin, end, result);                                                                    \
        return result;                                                                                                \
    }

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)
PRIMARY(cuDevicePrimaryCtxReset)
PRIMARY(cuDevicePrimaryCtxReset_v2)
PRIMARY(cuDevicePrimaryCtxRelease)
PRIMARY(cuDevicePrimaryCtxRelease_v2)

#define PROFILER(id, before, after)                                                                                   \
    Result id(void) {                                                                                                 \
        Result (*real)(void) = (Result(*)(void))real_call(CALL_##id);                                                 \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!ring_there()) return real();                                                                             \
        before;                                                                                                       \
        uint64_t begin = ring_now();                                                                                  \
        Result result = real();                                                                                       \
        write_call(CALL_##id, begin, ring_now(), result);                                                             \
        after;                                                                                                        \
        return result;                                                                                                \
    }

PROFILER(cuProfilerStart, ring_switch(1), (void)0)
PROFILER(cuProfilerStop, (void)0, ring_switch(0))
