/* Copies: which of them can race, and their witness, delay and drain. */
#include "races.h"

enum { ATTRIBUTE_TYPE = 2, ATTRIBUTE_MANAGED = 8, ATTRIBUTE_START = 11, ATTRIBUTE_SIZE = 12, DURING_CALL = 2 };

enum Memory memory_of(const void *pointer, uint64_t *start, uint64_t *bytes) {
    int wanted[] = {ATTRIBUTE_TYPE, ATTRIBUTE_MANAGED, ATTRIBUTE_START, ATTRIBUTE_SIZE};
    uint64_t type = 0, managed = 0, begin = 0, size = 0;
    void *to[] = {&type, &managed, &begin, &size};
    if (!ours.cuPointerGetAttributes) return PAGEABLE;
    if (ours.cuPointerGetAttributes(start ? 4 : 2, wanted, to, (uintptr_t)pointer) != SUCCESS) return PAGEABLE;
    if (start) *start = begin, *bytes = size;
    return (uint32_t)managed ? MANAGED : (uint32_t)type == MEMORY_HOST ? PINNED
         : (uint32_t)type == MEMORY_DEVICE ? ON_DEVICE : PAGEABLE;
}

/* Of a copy from the host to the device; NULL where it cannot race, or not be watched, which is counted. */
static const Shape *watched(const Shape *shape, Stream given) {
    static const int counters[] = {
        [PAGEABLE] = LOGGED_pageable, [MANAGED] = LOGGED_managed, [ON_DEVICE] = LOGGED_from_device};
    enum Memory memory = memory_of(shape->from, NULL, NULL);
    log_count(LOGGED_copies, 1);
    if (stream_is_capturing(given)) return log_count(LOGGED_captured, 1), NULL;
    if (memory != PINNED) return log_count(counters[memory], 1), NULL;
    return shape;
}

static Row *row_of(enum Call call, const void *caller, const Shape *shape, Stream stream) {
    Row *row = log_row(call, caller, (uintptr_t)shape->from, shape->to, shape->width * shape->rows, (uintptr_t)stream);
    if (row) row_count(&row->calls);
    return row;
}

/* Whether the source may be filled in stream order, by a result or a host function that the host has not waited for. */
static int excused(const StreamState *stream, const Shape *shape) {
    return fetch_pending(shape->from, (shape->rows - 1) * shape->from_pitch + shape->width) ||
           stream->host_function > stream->waited;
}

/* A copy from the host with its witness: `call` is made in between. */
typedef struct {
    Inside before;
    StreamState *stream;
    Stream given;
    Slot *slot;
} Copying;

static Copying begin(enum Call call, const void *caller, const Shape *shape, Stream given) {
    Copying copying = {inside(), stream_of(given), given, NULL};
    StreamState *stream = copying.stream;
    const Shape *seen = stream ? watched(shape, given) : (log_count(LOGGED_without_stream, 1), NULL);
    Row *row = seen ? row_of(call, caller, seen, given) : NULL;
    stream_enter(stream);
    if (seen) {
        delay(KIND_H2D, stream, row);
        delay(KIND_HOST, NULL, row);
        copying.slot = witness_before(seen, stream, row, excused(stream, seen));
    }
    outside(copying.before);
    return copying;
}

static Result end(Copying *copying, Result result) {
    copying->before = inside();
    Slot *slot = copying->slot;
    Row *row = slot ? witness_row(slot) : NULL;
    witness_behind(slot, copying->given, result);
    stream_leave(copying->stream);
    if (slot && result == SUCCESS) witness_drained(slot, drain(copying->stream, copying->given, row));
    outside(copying->before);
    return result;
}

/* A copy to the host. */
typedef struct {
    Inside before;
    StreamState *stream;
    uint64_t number;
    Row *row;
    Fetched what;
    int captures;
} Fetching;

static Fetching begin_fetch(enum Call call, const void *caller, Fetched what, DevicePointer from, Stream given) {
    Fetching fetching = {inside(), stream_of(given), 0, NULL, what, stream_is_capturing(given)};
    if (!fetching.captures) {
        fetching.row = log_row(call, caller, from, (uintptr_t)what.to, what.width * what.rows, (uintptr_t)given);
        if (fetching.row) row_count(&fetching.row->calls);
    }
    fetching.number = stream_enter(fetching.stream);
    if (!fetching.captures) {
        delays_hold(fetching.stream);
        delay(KIND_D2H, fetching.stream, fetching.row);
        delay(KIND_HOST, NULL, fetching.row);
    }
    outside(fetching.before);
    return fetching;
}

static Result end_fetch(Fetching *fetching, Result result) {
    fetching->before = inside();
    if (result == SUCCESS && !fetching->captures)
        fetch(fetching->stream, fetching->number, &fetching->what, fetching->row);
    stream_leave(fetching->stream);
    outside(fetching->before);
    return result;
}

static void hold_first(StreamState *stream, Stream given) {
    if (settings.drain_ms && !stream_is_capturing(given)) delays_hold(stream);
}

/* A copy that is neither, in its place on the stream. */
static Result beside(Inside before, StreamState *stream, Result result) {
    stream_leave(stream);
    outside(before);
    return result;
}

#define CALLER __builtin_return_address(0)

static Shape plain(const void *from, DevicePointer to, size_t bytes) { return (Shape){from, to, bytes, 1, 0, 0, 0}; }
static Fetched whole(void *to, size_t bytes) { return (Fetched){to, bytes, 1, 0}; }

#define TO_DEVICE(id, own)                                                                                            \
    Result id(DevicePointer d, const void *f, size_t n, Stream s) {                                                   \
        REAL(id, (DevicePointer, const void *, size_t, Stream));                                                      \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!n || !races_on()) return real(d, f, n, s);                                                               \
        Shape shape = plain(f, d, n);                                                                                 \
        Copying copying = begin(CALL_##id, CALLER, &shape, stream_given(s, own));                                     \
        return end(&copying, real(d, f, n, s));                                                                       \
    }
TO_DEVICE(cuMemcpyHtoDAsync_v2, 0)
TO_DEVICE(cuMemcpyHtoDAsync_v2_ptsz, 1)

#define TO_HOST(id, own)                                                                                              \
    Result id(void *d, DevicePointer f, size_t n, Stream s) {                                                         \
        REAL(id, (void *, DevicePointer, size_t, Stream));                                                            \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!n || !races_on()) return real(d, f, n, s);                                                               \
        Fetching fetching = begin_fetch(CALL_##id, CALLER, whole(d, n), f, stream_given(s, own));                     \
        return end_fetch(&fetching, real(d, f, n, s));                                                                \
    }
TO_HOST(cuMemcpyDtoHAsync_v2, 0)
TO_HOST(cuMemcpyDtoHAsync_v2_ptsz, 1)

enum Way { TO_THE_DEVICE, TO_THE_HOST, ELSEWHERE };

static enum Way way_of(DevicePointer to, DevicePointer from) {
    Inside before = inside();
    enum Memory goes = memory_of((void *)(uintptr_t)to, NULL, NULL);
    enum Memory comes = memory_of((void *)(uintptr_t)from, NULL, NULL);
    outside(before);
    if (goes == ON_DEVICE) return comes == ON_DEVICE ? ELSEWHERE : TO_THE_DEVICE;
    return comes == ON_DEVICE && goes != MANAGED ? TO_THE_HOST : ELSEWHERE;
}

/* The pointers say in which direction. */
#define ANY_WAY(id, own)                                                                                              \
    Result id(DevicePointer d, DevicePointer f, size_t n, Stream s) {                                                 \
        REAL(id, (DevicePointer, DevicePointer, size_t, Stream));                                                     \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!n || !races_on()) return real(d, f, n, s);                                                               \
        enum Way way = way_of(d, f);                                                                                  \
        Stream given = stream_given(s, own);                                                                          \
        if (way == TO_THE_DEVICE) {                                                                                   \
            Shape shape = plain((void *)(uintptr_t)f, d, n);                                                          \
            Copying copying = begin(CALL_##id, CALLER, &shape, given);                                                \
            return end(&copying, real(d, f, n, s));                                                                   \
        }                                                                                                             \
        if (way == TO_THE_HOST) {                                                                                     \
            Fetching fetching = begin_fetch(CALL_##id, CALLER, whole((void *)(uintptr_t)d, n), f, given);             \
            return end_fetch(&fetching, real(d, f, n, s));                                                            \
        }                                                                                                             \
        Inside before = inside();                                                                                     \
        StreamState *stream = stream_of(given);                                                                       \
        stream_enter(stream), hold_first(stream, stream_given(s, own));                                               \
        return beside(before, stream, real(d, f, n, s));                                                              \
    }
ANY_WAY(cuMemcpyAsync, 0)
ANY_WAY(cuMemcpyAsync_ptsz, 1)

/* Blocking: the result is there when the call returns, and so are those of all blocking streams. */
typedef struct {
    Row *row;
    Fetched what;
} Blocking;

static Blocking begin_blocking(enum Call call, const void *caller, Fetched what, DevicePointer from, int own,
                               Covered *covered) {
    Inside before = inside();
    Stream given = stream_given(NULL, own);
    Row *row = log_row(call, caller, from, (uintptr_t)what.to, what.width, (uintptr_t)given);
    if (row) row_count(&row->calls);
    cover_stream(stream_of(given), covered);
    outside(before);
    return (Blocking){row, what};
}

static Result end_blocking(const Blocking *blocking, const Covered *covered, Result result) {
    Inside before = inside();
    if (result == SUCCESS) waited_for(covered), fetched_now(&blocking->what, blocking->row);
    outside(before);
    return result;
}

#define BLOCKING_TO_HOST(id, own)                                                                                     \
    Result id(void *d, DevicePointer f, size_t n) {                                                                   \
        Covered covered;                                                                                              \
        REAL(id, (void *, DevicePointer, size_t));                                                                    \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!n || !races_on()) return real(d, f, n);                                                                  \
        Blocking blocking = begin_blocking(CALL_##id, CALLER, whole(d, n), f, own, &covered);                         \
        return end_blocking(&blocking, &covered, real(d, f, n));                                                      \
    }
BLOCKING_TO_HOST(cuMemcpyDtoH_v2, 0)
BLOCKING_TO_HOST(cuMemcpyDtoH_v2_ptds, 1)

#define BLOCKING_ANY_WAY(id, own)                                                                                     \
    Result id(DevicePointer d, DevicePointer f, size_t n) {                                                           \
        Covered covered;                                                                                              \
        REAL(id, (DevicePointer, DevicePointer, size_t));                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!n || !races_on() || way_of(d, f) != TO_THE_HOST) return real(d, f, n);                                   \
        Blocking blocking = begin_blocking(CALL_##id, CALLER, whole((void *)(uintptr_t)d, n), f, own, &covered);      \
        return end_blocking(&blocking, &covered, real(d, f, n));                                                      \
    }
BLOCKING_ANY_WAY(cuMemcpy, 0)
BLOCKING_ANY_WAY(cuMemcpy_ptds, 1)

/* Copies of rows, and of planes of rows; where these do not lie evenly, only the first plane is compared. */
typedef struct {
    enum Way way;
    Shape shape;
    Fetched what;
    DevicePointer from;
    int is_array;
} Rows;

static int is_host(unsigned type, DevicePointer unified) {
    if (type != MEMORY_UNIFIED) return type == MEMORY_HOST;
    return memory_of((void *)(uintptr_t)unified, NULL, NULL) != ON_DEVICE;
}

static Rows rows_of(Place3D src, Place3D dst, size_t width, size_t height, size_t depth, int is_even) {
    Rows rows = {.way = ELSEWHERE};
    size_t from_at = (src.z * (src.height ? src.height : height) + src.y) * src.pitch + src.x;
    size_t to_at = (dst.z * (dst.height ? dst.height : height) + dst.y) * dst.pitch + dst.x;
    int from_host = src.type != MEMORY_ARRAY && is_host(src.type, src.device);
    int to_host = dst.type != MEMORY_ARRAY && is_host(dst.type, dst.device);
    size_t count = depth == 1 || is_even ? height * depth : height;
    const char *host_from = src.type == MEMORY_HOST ? src.host : (const char *)(uintptr_t)src.device;
    char *host_to = dst.type == MEMORY_HOST ? (char *)(uintptr_t)dst.host : (char *)(uintptr_t)dst.device;
    rows.is_array = src.type == MEMORY_ARRAY || dst.type == MEMORY_ARRAY;
    rows.shape = (Shape){host_from + from_at, dst.device + to_at, width, count, src.pitch, dst.pitch,
                         count < height * depth};
    rows.what = (Fetched){host_to + to_at, width, count, dst.pitch};
    rows.from = src.device + from_at;
    if (from_host && !to_host) rows.way = TO_THE_DEVICE;
    if (to_host && !from_host) rows.way = TO_THE_HOST;
    return rows;
}

static Place3D flat(const Place2D *place) {
    return (Place3D){.x = place->x, .y = place->y, .type = place->type, .host = place->host, .device = place->device,
                     .array = place->array, .pitch = place->pitch};
}

static Rows rows_2d(const Copy2D *c) { return rows_of(flat(&c->src), flat(&c->dst), c->width, c->height, 1, 1); }

static Rows rows_3d(const Copy3D *c) {
    int is_even = c->src.height == c->height && c->dst.height == c->height;
    return rows_of(c->src, c->dst, c->width, c->height, c->depth, is_even);
}

#define SHAPED(id, type, own, rows_in)                                                                                \
    Result id(const type *c, Stream s) {                                                                              \
        REAL(id, (const type *, Stream));                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!c || !races_on()) return real(c, s);                                                                     \
        Stream given = stream_given(s, own);                                                                          \
        Inside before = inside();                                                                                     \
        Rows rows = rows_in(c);                                                                                       \
        outside(before);                                                                                              \
        if (rows.is_array && rows.way == TO_THE_DEVICE) log_count(LOGGED_to_arrays, 1);                               \
        else if (rows.way == TO_THE_DEVICE) {                                                                         \
            Copying copying = begin(CALL_##id, CALLER, &rows.shape, given);                                           \
            return end(&copying, real(c, s));                                                                         \
        } else if (rows.way == TO_THE_HOST) {                                                                         \
            Fetching fetching = begin_fetch(CALL_##id, CALLER, rows.what, rows.from, given);                          \
            return end_fetch(&fetching, real(c, s));                                                                  \
        }                                                                                                             \
        before = inside();                                                                                            \
        StreamState *stream = stream_of(given);                                                                       \
        stream_enter(stream), hold_first(stream, stream_given(s, own));                                               \
        return beside(before, stream, real(c, s));                                                                    \
    }
SHAPED(cuMemcpy2DAsync_v2, Copy2D, 0, rows_2d)
SHAPED(cuMemcpy2DAsync_v2_ptsz, Copy2D, 1, rows_2d)
SHAPED(cuMemcpy3DAsync_v2, Copy3D, 0, rows_3d)
SHAPED(cuMemcpy3DAsync_v2_ptsz, Copy3D, 1, rows_3d)

/* Many copies in one call: each has its witness, all behind the call. Source: CUmemcpyAttributes of cuda.h. */
typedef struct {
    int order; /* in which the source is read: of the stream, during the call, any */
    int places[4];
    unsigned flags;
} BatchAttributes;

enum { MOST_IN_BATCH = 256 };
typedef struct {
    Copying copying;
    Slot *slots[MOST_IN_BATCH];
    Fetched fetched[MOST_IN_BATCH];
    Row *rows[MOST_IN_BATCH];
    unsigned count, fetches;
    uint64_t number;
} Batch;

static int is_read_during_call(const BatchAttributes *attributes, const size_t *indices, size_t count, size_t at) {
    size_t which = 0;
    if (!attributes || !indices || !count) return 0;
    while (which + 1 < count && indices[which + 1] <= at) which++;
    return attributes[which].order == DURING_CALL;
}

static void begin_batch(Batch *batch, enum Call call, const void *caller, const DevicePointer *d,
                        const DevicePointer *f, const size_t *sizes, size_t count, const void *attributes,
                        const size_t *indices, size_t attribute_count, Stream given) {
    StreamState *stream;
    batch->count = batch->fetches = 0;
    batch->copying = (Copying){inside(), stream = stream_of(given), given, NULL};
    batch->number = stream_enter(stream);
    for (size_t i = 0; stream && i < count; i++) {
        if (batch->count == MOST_IN_BATCH || batch->fetches == MOST_IN_BATCH) {
            log_count(LOGGED_slots_full, count - i);
            break;
        }
        enum Way way = way_of(d[i], f[i]);
        Shape shape = plain((void *)(uintptr_t)f[i], d[i], sizes[i]);
        if (way == TO_THE_HOST) {
            batch->fetched[batch->fetches] = whole((void *)(uintptr_t)d[i], sizes[i]);
            Row *row = log_row(call, caller, f[i], d[i], sizes[i], (uintptr_t)given);
            if (row) row_count(&row->calls);
            batch->rows[batch->fetches++] = row;
        }
        if (way != TO_THE_DEVICE) continue;
        if (is_read_during_call(attributes, indices, attribute_count, i)) {
            log_count(LOGGED_during_call, 1);
            continue;
        }
        if (!watched(&shape, given)) continue;
        Row *row = row_of(call, caller, &shape, given);
        if (!batch->count) delay(KIND_H2D, stream, row), delay(KIND_HOST, NULL, row);
        Slot *slot = witness_before(&shape, stream, row, excused(stream, &shape));
        if (slot) batch->slots[batch->count++] = slot;
    }
    outside(batch->copying.before);
}

static Result end_batch(Batch *batch, Result result) {
    Copying *copying = &batch->copying;
    copying->before = inside();
    for (unsigned i = 0; i < batch->count; i++) witness_behind(batch->slots[i], copying->given, result);
    for (unsigned i = 0; result == SUCCESS && i < batch->fetches; i++)
        fetch(copying->stream, batch->number, &batch->fetched[i], batch->rows[i]);
    stream_leave(copying->stream);
    if (result == SUCCESS && batch->count) {
        enum Drained how = drain(copying->stream, copying->given, NULL);
        for (unsigned i = 0; i < batch->count; i++) witness_drained(batch->slots[i], how);
    }
    outside(copying->before);
    return result;
}

#define BATCHED(id, own, params, args)                                                                                \
    Result id params {                                                                                                \
        Batch batch;                                                                                                  \
        REAL(id, params);                                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!races_on()) return real args;                                                                            \
        begin_batch(&batch, CALL_##id, CALLER, d, f, sizes, count, attributes, indices, attribute_count,              \
                    stream_given(s, own));                                                                            \
        return end_batch(&batch, real args);                                                                          \
    }
#define FIRST_PARAMS                                                                                                  \
    (DevicePointer *d, DevicePointer *f, size_t *sizes, size_t count, void *attributes, size_t *indices,              \
     size_t attribute_count, size_t *failed, Stream s)
#define SECOND_PARAMS                                                                                                 \
    (DevicePointer *d, DevicePointer *f, size_t *sizes, size_t count, void *attributes, size_t *indices,              \
     size_t attribute_count, Stream s)
BATCHED(cuMemcpyBatchAsync, 0, FIRST_PARAMS, (d, f, sizes, count, attributes, indices, attribute_count, failed, s))
BATCHED(cuMemcpyBatchAsync_ptsz, 1, FIRST_PARAMS, (d, f, sizes, count, attributes, indices, attribute_count, failed, s))
BATCHED(cuMemcpyBatchAsync_v2, 0, SECOND_PARAMS, (d, f, sizes, count, attributes, indices, attribute_count, s))
BATCHED(cuMemcpyBatchAsync_v2_ptsz, 1, SECOND_PARAMS, (d, f, sizes, count, attributes, indices, attribute_count, s))

/* Copies that are only counted. */
#define COUNTED(id, own, params, args, counter)                                                                       \
    Result id params {                                                                                                \
        REAL(id, params);                                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!races_on()) return real args;                                                                            \
        Inside before = inside();                                                                                     \
        StreamState *stream = stream_of(stream_given(s, own));                                                        \
        stream_enter(stream), hold_first(stream, stream_given(s, own));                                               \
        log_count(counter, 1);                                                                                        \
        return beside(before, stream, real args);                                                                     \
    }
#define TO_ARRAY_PARAMS (Array d, size_t o, const void *f, size_t n, Stream s)
COUNTED(cuMemcpyHtoAAsync_v2, 0, TO_ARRAY_PARAMS, (d, o, f, n, s), LOGGED_to_arrays)
COUNTED(cuMemcpyHtoAAsync_v2_ptsz, 1, TO_ARRAY_PARAMS, (d, o, f, n, s), LOGGED_to_arrays)
#define BATCH_3D_PARAMS (size_t count, void *list, size_t *failed, unsigned long long flags, Stream s)
COUNTED(cuMemcpy3DBatchAsync, 0, BATCH_3D_PARAMS, (count, list, failed, flags, s), LOGGED_batches_3d)
COUNTED(cuMemcpy3DBatchAsync_ptsz, 1, BATCH_3D_PARAMS, (count, list, failed, flags, s), LOGGED_batches_3d)
#define BATCH_3D_V2_PARAMS (size_t count, void *list, unsigned long long flags, Stream s)
COUNTED(cuMemcpy3DBatchAsync_v2, 0, BATCH_3D_V2_PARAMS, (count, list, flags, s), LOGGED_batches_3d)
COUNTED(cuMemcpy3DBatchAsync_v2_ptsz, 1, BATCH_3D_V2_PARAMS, (count, list, flags, s), LOGGED_batches_3d)
