/* The library of `intertoken races`: it watches, delays and drains the copies of a program, so that a race shows.
 *
 * Nothing of it is in the light library; both share how calls are intercepted (../interpose.c), files and call sites.
 * The environment's INTERTOKEN_RACES says what is done in this run, as NAME=NUMBER separated by commas (start.c).
 */
#ifndef INTERTOKEN_RACES_H
#define INTERTOKEN_RACES_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "../interpose.h"
#include "log.h"

/* What can be delayed. */
enum Kind { KIND_H2D, KIND_D2H, KIND_LAUNCH, KIND_GRAPH, KIND_SYNC, KIND_HOST, KIND_OTHER };

typedef struct {
    uint64_t witness;     /* whether copies are compared */
    uint64_t sample;      /* most bytes of a copy that are compared */
    uint64_t kinds;       /* 1 << Kind of what is delayed */
    uint64_t delay_us, per_mille, seed;
    uint64_t site;        /* key of the only row that is delayed; 0: all */
    uint64_t ordinal;     /* only the n-th of its kind since the last graph launch; 0: all */
    uint64_t drain_ms;    /* after each copy wait until its stream is idle, at most so long; 0: not at all */
    uint64_t gated_ms;    /* the same where the program itself holds the stream back */
    uint64_t hold_us;     /* when draining: how long the first work on an idle stream is held back */
    uint64_t digests;     /* whether results are digested */
    uint64_t slots;       /* most copies that are compared at a time, per size */
} Settings;
extern Settings settings;

/* Functions of the driver that only we call; those of CALLS we reach through real_call. */
#define OUR_CALLS(X)                                                                                                  \
    X(cuCtxGetCurrent, (Context *))                                                                                   \
    X(cuStreamIsCapturing, (Stream, int *))                                                                           \
    X(cuStreamGetFlags, (Stream, unsigned *))                                                                         \
    X(cuThreadExchangeStreamCaptureMode, (int *))                                                                     \
    X(cuPointerGetAttributes, (unsigned, int *, void **, DevicePointer))                                              \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                               \
    X(cuMemHostGetDevicePointer_v2, (DevicePointer *, void *, unsigned))                                              \
    X(cuEventCreate, (Event *, unsigned))                                                                             \
    X(cuGraphGetNodes, (Graph, Node *, size_t *))                                                                     \
    X(cuGraphNodeGetType, (Node, int *))                                                                              \
    X(cuGraphChildGraphNodeGetGraph, (Node, Graph *))                                                                 \
    X(cuGraphMemcpyNodeGetParams, (Node, Copy3D *))
typedef struct {
#define X(name, params) Result(*name) params;
    OUR_CALLS(X)
#undef X
} Ours;
extern Ours ours;

#define REAL(id, params) Result(*real) params = (Result(*) params)real_call(CALL_##id)

/* The real function of a call, with its type. */
#define DRIVER(id, params) ((Result(*) params)real_call(CALL_##id))

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Whether this call of the program is watched: not one that we, or the driver, make within another. */
int races_on(void);

/* Between these two, calls of this thread are ours: the driver refuses none because a stream is being captured. */
typedef struct {
    int mode, is_ours;
} Inside;
Inside inside(void);
void outside(Inside before);

void races_host_wait(uint64_t us);

/* streams.c: what is known of a stream, and which of its work the host has waited for. */
enum { COVERS = 8 };
typedef struct StreamState StreamState;

/* Work of a stream up to that number. */
typedef struct {
    StreamState *stream;
    uint64_t number;
} Cover;

struct StreamState {
    uint64_t handle, thread; /* `thread` of the default stream that each thread has its own of */
    pthread_mutex_t lock;    /* held while work is enqueued, so that a copy and its witness stay adjacent */
    _Atomic uint64_t enqueued, waited; /* pieces of work, and up to which the host has waited */
    _Atomic uint64_t host_function;    /* number of the last function of the host */
    Cover behind[COVERS];    /* work of other streams that comes before what is enqueued now */
    unsigned behind_count;
    uint8_t is_blocking;     /* waits for the legacy default stream */
    _Atomic uint8_t is_gated;          /* the program waits on it for a value since it was idle last */
    _Atomic uint8_t is_held;           /* we have held it back since it was drained last */
};

Stream stream_given(Stream stream, int own); /* the default stream by the handle that says which */
StreamState *stream_of(Stream given);        /* NULL: too many */
int stream_is_capturing(Stream stream);

/* Enqueue the next piece of work: its number, with the stream's lock held until `stream_leave`. */
uint64_t stream_enter(StreamState *stream);
void stream_leave(StreamState *stream);

void streams_record(StreamState *stream, Event event);
void streams_wait(StreamState *stream, Event event);
void streams_forget(Stream given);
void streams_hold_again(void); /* after a drain each stream's next work is held back: it may fill a source on another */
void streams_fork(void);

/* What a wait for a stream, an event or everything covers, taken before it; and that it is over: results are there. */
enum { STREAMS = 256 };
typedef struct {
    Cover of[STREAMS + COVERS + 1];
    unsigned count;
} Covered;
void cover_stream(StreamState *stream, Covered *covered);
void cover_event(Event event, Covered *covered);
void cover_all(Covered *covered);
void waited_for(const Covered *covered);

/* delays.c */
int delay_wanted(enum Kind kind, const Row *row);
void delay(enum Kind kind, StreamState *stream, Row *row); /* before the call */
void delays_hold(StreamState *stream);                     /* when draining, before other work than copies */
void delays_step(void);                                    /* a graph is launched */
void delays_fork(void);

/* witness.c: `rows` pieces of `width` bytes, `from_pitch` and `to_pitch` bytes apart; a plain copy has one. */
typedef struct {
    const void *from;
    DevicePointer to;
    size_t width, rows, from_pitch, to_pitch;
    _Bool is_part; /* of a copy */
} Shape;
typedef struct Slot Slot;
Slot *witness_before(const Shape *shape, StreamState *stream, Row *row, int is_excused); /* NULL: not watched */
void witness_behind(Slot *slot, Stream stream, Result result);                           /* with the stream's lock */
enum Drained { NOT_DRAINED, DRAINED, GAVE_UP, GAVE_UP_GATED };
Row *witness_row(const Slot *slot);
void witness_drained(Slot *slot, enum Drained how);
void witness_check(void); /* compare what has arrived */
void witness_settle(int64_t most_ns);
void witness_forget_context(void);
void witness_fork(void);

/* Rows of copies that overlap these bytes of memory and have not arrived. */
unsigned witness_in_flight(uint64_t from, uint64_t bytes, Row **rows, unsigned most);

/* Our pinned memory: as the host and the device see it. NULL without. Pinning waits for what runs, so it is done at the
 * program's first work, not at its first copy. */
void *pinned_gates(DevicePointer *device);
int witness_has_memory(void);

/* drain.c */
enum Drained drain(StreamState *stream, Stream handle, const Row *row);

/* digest.c: results that the program fetches */
typedef struct {
    void *to;
    size_t width, rows, pitch;
} Fetched;
void fetch(StreamState *stream, uint64_t number, const Fetched *what, Row *row);
void fetched_now(const Fetched *what, Row *row);
void fetch_forget(const void *from, size_t bytes); /* that memory is about to go; NULL: all */
int fetch_pending(const void *from, size_t bytes); /* whether a result not waited for goes there */
void digest_waited(const Covered *covered);
void digest_fork(void);

/* The calls of memory as the driver sees it. */
enum Memory { PAGEABLE, PINNED, MANAGED, ON_DEVICE };
enum Memory memory_of(const void *pointer, uint64_t *start, uint64_t *bytes);

#endif
