/* The wrappers of all calls except those in graphs.c, contexts.c and names.c. */
#include "device.h"
#include "hot.h"
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

/* What is done before and after a call, on the stream `on` as defined in `stamps.h`. */
enum How {
    PLAIN = 0, LAUNCH = 1, END = 2, END_ALL = 4, END_OTHER = 8, WAIT = 16, FORGET = 32, ASK = 64, BESIDE = 128,
    ASK_EVENT = 256,
    END_WAIT = END | WAIT,
};

HOT static void end_before(uint8_t context, unsigned how, Stream on) {
    if (how & END) stamps_end(context, on);
    if (how & (END_ALL | END_OTHER)) stamps_end_all(context);
    if (how & (END_ALL | END_OTHER | WAIT)) stamps_wait();
    if (how & FORGET) stamps_forget(context, on);
}

/* With -DOWN_TIME, `object` and `bytes` are the recorder's own time, ns: before this call of the driver, and after the
 * thread's previous one (benchmarks/light_own_time.py). */
#ifdef OWN_TIME
static _Thread_local __attribute__((tls_model("initial-exec"))) uint64_t own_after;
#define OWN_BEGIN uint64_t own_begin = ring_now();
#define LEAVE(how)                                                                                                    \
    record.object = ring_ns(record.begin - own_begin);                                                                \
    record.bytes = own_after;                                                                                         \
    leave(&record, how, stream_, result);                                                                             \
    own_after = ring_ns(ring_now() - record.end);
#else
#define OWN_BEGIN
#define LEAVE(how) leave(&record, how, stream_, result);
#endif

HOT __attribute__((noinline)) static void enter(Record *record, enum Call call, unsigned how, Stream on, void *other) {
    *record = (Record){.call = (uint16_t)call, .stream = (uintptr_t)on};
    record->context = how & END_OTHER ? device_of(other) : device_context();
    if (how & LAUNCH) record->number = stamps_run(record->context, on, other);
    else if (how & ~(unsigned)(ASK | ASK_EVENT | BESIDE)) end_before(record->context, how, on);
    ring_expect();
    record->begin = ring_now();
}

/* A tail before a query would change its result; after work that has already ended a tail is useless. */
static void asked(const Record *record, Stream on) {
    if (record->result == SUCCESS) stamps_leave(record->context, on);
    else stamps_end(record->context, on);
    stamps_wait();
}

HOT __attribute__((noinline)) static void leave(Record *record, unsigned how, Stream on, Result result) {
    record->end = ring_now();
    record->result = (uint16_t)result;
    if (how & LAUNCH) record->number = stamps_ran(record->context, on, record->number, result);
    if (how & BESIDE) record->number = stamps_beside(record->context, on, result);
    if (how & ASK) asked(record, on);
    if (how & (ASK | ASK_EVENT) && result == ERROR_NOT_READY) ring_write_query(record);
    else ring_write(record);
}

#define DEFINE(id, own, params, args, on, about, size, kind, how, other)                                              \
    Result id params {                                                                                                \
        OWN_BEGIN                                                                                                     \
        Result(*real) params = (Result(*) params)real_call(CALL_##id);                                                \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!recording()) return real args;                                                                           \
        Record record;                                                                                                \
        Stream stream_ = stamps_stream(on, own);                                                                      \
        enter(&record, CALL_##id, how, stream_, other);                                                               \
        Result result = real args;                                                                                    \
        int is_done = result == SUCCESS; /* the arguments of a refused call may point anywhere */                     \
        record.object = (uintptr_t)(about);                                                                           \
        record.bytes = is_done ? (uint64_t)(size) : 0;                                                                \
        record.copy_kind = is_done ? (uint8_t)(kind) : COPY_UNKNOWN;                                                  \
        LEAVE(how)                                                                                                    \
        return result;                                                                                                \
    }

#define WRAP(how, ...) DEFINE(__VA_ARGS__, how, NULL)
#define WRAP_OWN(...)
#define WRAP_PLAIN(...) WRAP(PLAIN, __VA_ARGS__)
#define WRAP_LAUNCH(...) DEFINE(__VA_ARGS__, LAUNCH, f)
#define WRAP_END(...) WRAP(END, __VA_ARGS__)
#define WRAP_END_ALL(...) WRAP(END_ALL, __VA_ARGS__)
#define WRAP_END_OTHER(...) DEFINE(__VA_ARGS__, END_OTHER, c)
#define WRAP_WAIT(...) WRAP(WAIT, __VA_ARGS__)
#define WRAP_END_WAIT(...) WRAP(END_WAIT, __VA_ARGS__)
#define WRAP_ASK(...) WRAP(ASK, __VA_ARGS__)
#define WRAP_ASK_EVENT(...) WRAP(ASK_EVENT, __VA_ARGS__)
#define WRAP_FORGET(...) WRAP(FORGET, __VA_ARGS__)
#define WRAP_BESIDE(...) WRAP(BESIDE, __VA_ARGS__)
#define CALL(id, symbol, since, own, params, args, on, about, size, kind, how)                                        \
    WRAP_##how(id, own, params, args, on, about, size, kind)

CALLS
