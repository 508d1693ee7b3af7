/* Calls that put a function of the host on a stream, and the function's own run on a thread of the driver: a host that
 * waits by a lock that the function opens makes no other call.
 *
 * The driver gets a function of ours, which calls the program's, once, and frees what it was told. Not while the stream
 * is captured: a graph may run the function any number of times. `object` is the same number in both records. On the
 * driver's thread nothing may call the driver. */
#include <stdlib.h>

#include "device.h"
#include "interpose.h"
#include "stamps.h"

typedef struct {
    HostFunction function;
    StreamCallback callback;
    void *data;
    uint64_t stream, number;
    uint8_t context;
} Put;

static _Atomic uint64_t numbers;

static void write_run(const Put *put, enum RunCall call, uint64_t begin) {
    if (!ring.header || ring_turn() & 1) return;
    Record record = {.begin = begin, .end = ring_now(), .call = (uint16_t)(CALL_COUNT + RANGE_CALL_COUNT + call),
                     .stream = put->stream, .object = put->number, .context = put->context};
    ring_write(&record);
}

static void run(void *given) {
    const Put put = *(Put *)given;
    free(given); /* before: the function may never return */
    uint64_t begin = ring_now();
    put.function(put.data);
    write_run(&put, RUN_cuLaunchHostFunc, begin);
}

static void run_callback(Stream stream, Result result, void *given) {
    const Put put = *(Put *)given;
    free(given);
    uint64_t begin = ring_now();
    put.callback(stream, result, put.data);
    write_run(&put, RUN_cuStreamAddCallback, begin);
}

/* What the driver is to be given; NULL: what the program gave. */
static Put *wrapped(const Put *given, Stream on) {
    int runs = stamps_runs_now(on);
    Put *put = runs ? malloc(sizeof *put) : NULL;
    if (!runs) ring_count(COUNT_functions_captured, 1);
    if (put) *put = *given;
    return put;
}

#define PUT(id, own, params, of, member, call_wrapped, call_plain)                                                    \
    Result id params {                                                                                                \
        Result (*real) params = (Result(*) params)real_call(CALL_##id);                                               \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!of || !recording()) return real call_plain;                                                              \
        Stream on = stamps_stream(s, own);                                                                            \
        Put given = {.member = of, .data = d, .stream = (uintptr_t)on, .number = atomic_fetch_add(&numbers, 1u) + 1,  \
                     .context = device_context()};                                                                    \
        stamps_end(given.context, on);                                                                                \
        Put *put = wrapped(&given, on);                                                                               \
        uint64_t begin = ring_now();                                                                                  \
        Result result = put ? real call_wrapped : real call_plain;                                                    \
        Record record = {.begin = begin, .end = ring_now(), .call = CALL_##id, .result = (uint16_t)result,            \
                         .stream = given.stream, .object = given.number, .context = given.context};                   \
        if (result != SUCCESS) free(put);                                                                             \
        ring_write(&record);                                                                                          \
        return result;                                                                                                \
    }
#define PUT_FUNCTION(id, own)                                                                                         \
    PUT(id, own, (Stream s, HostFunction f, void *d), f, function, (s, run, put), (s, f, d))
#define PUT_CALLBACK(id, own)                                                                                         \
    PUT(id, own, (Stream s, StreamCallback f, void *d, unsigned flags), f, callback, (s, run_callback, put, flags),   \
        (s, f, d, flags))

PUT_FUNCTION(cuLaunchHostFunc, 0)
PUT_FUNCTION(cuLaunchHostFunc_ptsz, 1)
PUT_CALLBACK(cuStreamAddCallback, 0)
PUT_CALLBACK(cuStreamAddCallback_ptsz, 1)
