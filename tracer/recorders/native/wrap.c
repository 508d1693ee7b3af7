/* The wrappers of all calls but those that are written out in graphs.c. */
#include "device.h"
#include "interpose.h"
#include "stamps.h"

static inline unsigned kind_of(unsigned from, unsigned to) {
    static const unsigned char kinds[5][5] = {
        [MEMORY_HOST] = {[MEMORY_HOST] = HTOH, [MEMORY_DEVICE] = HTOD, [MEMORY_ARRAY] = HTOA},
        [MEMORY_DEVICE] = {[MEMORY_HOST] = DTOH, [MEMORY_DEVICE] = DTOD, [MEMORY_ARRAY] = DTOA},
        [MEMORY_ARRAY] = {[MEMORY_HOST] = ATOH, [MEMORY_DEVICE] = ATOD, [MEMORY_ARRAY] = ATOA},
    };
    return from < 5 && to < 5 ? kinds[from][to] : COPY_UNKNOWN;
}

static inline unsigned kind_2d(const Copy2D *c) { return c ? kind_of(c->src.type, c->dst.type) : COPY_UNKNOWN; }
static inline unsigned kind_3d(const Copy3D *c) { return c ? kind_of(c->src.type, c->dst.type) : COPY_UNKNOWN; }
static inline uint64_t bytes_2d(const Copy2D *c) { return c ? c->width * c->height : 0; }
static inline uint64_t bytes_3d(const Copy3D *c) { return c ? c->width * c->height * c->depth : 0; }

static inline uint64_t bytes_all(const size_t *sizes, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; sizes && i < count; i++) bytes += sizes[i];
    return bytes;
}

#define BEFORE_PLAIN(stream, own) 0
#define BEFORE_LAUNCH(stream, own) stamps_run(stream, own)
#define BEFORE_END(stream, own) (stamps_end(stream, own), 0)
#define BEFORE_END_ALL(stream, own) (stamps_end_all(), stamps_wait(), 0)
#define BEFORE_WAIT(stream, own) (stamps_wait(), 0)
#define BEFORE_END_WAIT(stream, own) (stamps_end(stream, own), stamps_wait(), 0)

#define DEFINE(id, own, params, args, on, about, size, kind, before)                                                  \
    Result id params {                                                                                                \
        Result(*real) params = (Result(*) params)real_call(CALL_##id);                                                \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!recording()) return real args;                                                                           \
        Record record = {.call = CALL_##id};                                                                          \
        record.number = before(on, own);                                                                              \
        record.begin = ring_now();                                                                                    \
        record.result = (uint16_t)real args;                                                                          \
        record.end = ring_now();                                                                                      \
        record.stream = (uintptr_t)stamps_stream(on, own);                                                            \
        record.object = (uintptr_t)(about);                                                                           \
        record.bytes = (uint64_t)(size);                                                                              \
        record.copy_kind = (uint8_t)(kind);                                                                           \
        record.context = device_context();                                                                            \
        ring_write(&record);                                                                                          \
        return record.result;                                                                                         \
    }

#define WRAP_PLAIN(...) DEFINE(__VA_ARGS__, BEFORE_PLAIN)
#define WRAP_LAUNCH(...) DEFINE(__VA_ARGS__, BEFORE_LAUNCH)
#define WRAP_END(...) DEFINE(__VA_ARGS__, BEFORE_END)
#define WRAP_END_ALL(...) DEFINE(__VA_ARGS__, BEFORE_END_ALL)
#define WRAP_WAIT(...) DEFINE(__VA_ARGS__, BEFORE_WAIT)
#define WRAP_END_WAIT(...) DEFINE(__VA_ARGS__, BEFORE_END_WAIT)
#define WRAP_OWN(...)
#define CALL(id, symbol, since, own, params, args, on, about, size, kind, how)                                        \
    WRAP_##how(id, own, params, args, on, about, size, kind)

CALLS
