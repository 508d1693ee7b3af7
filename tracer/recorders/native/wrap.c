/* The wrappers of all calls except those in graphs.c and contexts.c. */
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

/* The actions before and after a call; `s` is the stream, as defined in `stamps.h`. */
#define BEFORE_PLAIN(s)
#define BEFORE_LAUNCH(s) record.number = stamps_run(record.context, s);
#define BEFORE_END(s) stamps_end(record.context, s);
#define BEFORE_END_ALL(s) stamps_end_all(record.context), stamps_wait();
#define BEFORE_END_OTHER(s) record.context = device_of(c), stamps_end_all(record.context), stamps_wait();
#define BEFORE_WAIT(s) stamps_wait();
#define BEFORE_END_WAIT(s) stamps_end(record.context, s), stamps_wait();
#define BEFORE_ASK(s)
#define BEFORE_FORGET(s) stamps_forget(record.context, s);
#define BEFORE_BESIDE(s)

#define AFTER_PLAIN(s)
#define AFTER_LAUNCH(s) record.number = stamps_ran(record.context, s, record.number, result);
#define AFTER_BESIDE(s) record.number = stamps_beside(record.context, s, result);
#define AFTER_END(s)
#define AFTER_END_ALL(s)
#define AFTER_END_OTHER(s)
#define AFTER_WAIT(s)
#define AFTER_END_WAIT(s)
/* A tail before the query would change its result; after work that has already ended a tail is useless. */
#define AFTER_ASK(s)                                                                                                  \
    if (record.result == SUCCESS) stamps_leave(record.context, s);                                                    \
    else stamps_end(record.context, s);                                                                               \
    stamps_wait();
#define AFTER_FORGET(s)

#define DEFINE(id, own, params, args, on, about, size, kind, before, after)                                           \
    Result id params {                                                                                                \
        Result(*real) params = (Result(*) params)real_call(CALL_##id);                                                \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!recording()) return real args;                                                                           \
        Stream stream_ = stamps_stream(on, own);                                                                      \
        Record record = {.call = CALL_##id, .context = device_context(), .stream = (uintptr_t)stream_};               \
        before(stream_)                                                                                               \
        ring_expect();                                                                                                \
        record.begin = ring_now();                                                                                    \
        Result result = real args;                                                                                    \
        record.end = ring_now();                                                                                      \
        record.result = (uint16_t)result;                                                                             \
        after(stream_)                                                                                                \
        record.object = (uintptr_t)(about);                                                                           \
        record.bytes = (uint64_t)(size);                                                                              \
        record.copy_kind = (uint8_t)(kind);                                                                           \
        ring_write(&record);                                                                                          \
        return result;                                                                                                \
    }

#define WRAP(how, ...) DEFINE(__VA_ARGS__, BEFORE_##how, AFTER_##how)
#define WRAP_OWN(...)
#define WRAP_PLAIN(...) WRAP(PLAIN, __VA_ARGS__)
#define WRAP_LAUNCH(...) WRAP(LAUNCH, __VA_ARGS__)
#define WRAP_END(...) WRAP(END, __VA_ARGS__)
#define WRAP_END_ALL(...) WRAP(END_ALL, __VA_ARGS__)
#define WRAP_END_OTHER(...) WRAP(END_OTHER, __VA_ARGS__)
#define WRAP_WAIT(...) WRAP(WAIT, __VA_ARGS__)
#define WRAP_END_WAIT(...) WRAP(END_WAIT, __VA_ARGS__)
#define WRAP_ASK(...) WRAP(ASK, __VA_ARGS__)
#define WRAP_FORGET(...) WRAP(FORGET, __VA_ARGS__)
#define WRAP_BESIDE(...) WRAP(BESIDE, __VA_ARGS__)
#define CALL(id, symbol, since, own, params, args, on, about, size, kind, how)                                        \
    WRAP_##how(id, own, params, args, on, about, size, kind)

CALLS
