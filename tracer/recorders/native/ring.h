/* The ring of one process: a file in shared memory that others can read while it runs and after it died.
 *
 * Layout, little endian, all offsets in the header; `tracer/recorders/light_ring.py` reads it.
 *   header (4096 bytes), names (NUL-terminated: calls, an empty one, counters, an empty one), pairs of clocks, records,
 *   per context the stamps of the program's work and those of the chain that measures a stamp's cost; texts (nvtx.c).
 * The file is sparse: blocks for the stamps of a context, and for the texts, are allocated with the first one.
 */
#ifndef INTERTOKEN_RING_H
#define INTERTOKEN_RING_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#define RING_MAGIC "ITLIGHT1"
enum {
    RING_VERSION = 5,
    HEADER_BYTES = 4096,
    NAMES_BYTES = 8192,
    PAIRS = 1024,
    RECORDS_AT = 1 << 16,   /* after all of these; separately mapped parts start at a page, which has at most 64 KiB */
    CONTEXTS = 32,          /* maximum contexts of a process, including destroyed ones */
    STAMPS = 1 << 17,       /* per context: 2 MiB */
    CHAIN_STAMPS = 1 << 12, /* never overwritten: one page of the largest size */
    NO_CONTEXT = 0xff,
    TEXTS_AT = 1 << 16,     /* offset in their part of the file */
    TEXT_BYTES = 1 << 22,
};

#define NUMBERS 0xffffffu /* of launches of graphs and of runs; then they wrap around */
#define BEFORE (1u << 30)
#define BEHIND (1u << 31)

/* A record of 64 bytes. `sequence` is its number + 1 once it is complete, and 0 while it is being written. */
typedef struct {
    _Atomic uint64_t sequence;
    uint64_t begin, end;    /* ticks of `ring_now`; the pairs convert them to CLOCK_MONOTONIC */
    uint32_t thread;        /* with its call site above SITE_SHIFT, 0 for none (sites.h) */
    uint16_t call, result;
    uint64_t stream, object, bytes;
    uint32_t number;        /* of the launch of a stamped graph, or of the run of launches that contains the launch,
                               with BEHIND if a stamp follows it, and BEFORE if three come right before it */
    uint8_t copy_kind, context;
    uint16_t graph;         /* id of a stamped graph; 0: not stamped */
} Record;

/* Two words that the device writes atomically: its time; sequence << 40 | number << 16 | graph << 1 | is_tail. */
typedef struct {
    uint64_t time, word;
} Stamp;

/* A tick and CLOCK_MONOTONIC at that moment (ns); the first pair is kept, the others are overwritten in turn. */
typedef struct {
    _Atomic uint64_t tick;
    _Atomic int64_t monotonic;
} Pair;

#define COUNTERS(X)                                                                                                   \
    X(runs) X(runs_with_stamps) X(run_stamps_ns) X(runs_left) X(launches_between) X(stamps_failed)                 \
    X(graphs_stamped) X(graphs_updated) X(graphs_left_conditional) X(graphs_left_memory) X(graphs_left_device)        \
    X(graphs_left_empty) X(graphs_left_many) X(graphs_left_refused) X(graphs_left_captured) X(graphs_left_context)    \
    X(stamping_ns) X(entries_left) X(contexts_left) X(names_left) X(cupti_dropped) X(cupti_buffers_left) X(cupti_ended)

/* The recorded NVTX calls, numbered after the others. */
#define RANGE_CALLS(X) X(mark) X(push) X(pop) X(start) X(end)

enum RangeCall {
#define X(name) NVTX_##name,
    RANGE_CALLS(X)
#undef X
};

enum Counter {
#define X(name) COUNT_##name,
    COUNTERS(X)
#undef X
    COUNTER_COUNT
};

typedef struct {
    uint64_t handle;
    int32_t device;
    uint32_t has_stamps;
    uint64_t uuid[2]; /* of the device; 0: unknown */
    char name[48];
} ContextFacts;

typedef struct {
    char magic[8];
    uint32_t version, header_bytes;
    uint32_t pid, record_bytes;
    uint64_t records, stamps, chain_stamps; /* capacities (stamps: per context) */
    uint64_t names_at, pairs_at, records_at, stamps_at, texts_at;
    _Atomic uint64_t text_bytes;            /* 0: there are none yet */
    int64_t start_monotonic, start_realtime;
    uint64_t pid_namespace;                 /* the namespace of `pid` */
    uint32_t parent, contexts_used, pairs;
    char program[128];
    /* What each call uses is in one cache line. */
    _Atomic uint64_t written __attribute__((aligned(64)));
    _Atomic uint32_t turns;                 /* odd: recording is paused; the reader may switch it */
    _Atomic uint32_t pairs_written;
    _Atomic uint64_t counters[COUNTER_COUNT] __attribute__((aligned(64)));
    ContextFacts contexts[CONTEXTS];
} Header;

_Static_assert(sizeof(Record) == 64, "a record is a cache line");
_Static_assert(sizeof(Header) <= HEADER_BYTES, "the header is a page");

/* One cache line, because a program's own work evicts it between two calls. */
typedef struct {
    _Atomic(Header *) header; /* NULL: nothing is recorded in this process */
    Record *records;
    Pair *pairs;
    uint64_t mask;
    _Atomic int64_t next_pair; /* the tick from which another pair is due */
    int64_t ticks_apart;       /* minimum between two pairs */
    double ticks_per_us;
    _Bool wraps;               /* whether the driver's calls are wrapped; otherwise CUPTI records them */
    _Bool counts_cycles;       /* whether ticks are the processor's counter; otherwise nanoseconds */
    _Bool has_sites;           /* whether records get call sites */
} __attribute__((aligned(64))) Ring;

_Static_assert(sizeof(Ring) == 64, "a cache line");

extern Ring ring;

/* Create the ring of this process at its first CUDA call; returns whether there is one. */
int ring_ready(void) __attribute__((cold));

/* Announce a program that could be recorded, with a line in the file `programs`. */
void ring_announce(void);

/* Allocate the blocks of a context's stamps and touch their pages: first those of the program's work, then those of the
 * chain. NULL if there is no space. */
Stamp *ring_take_stamps(unsigned context);

/* The same for the texts. */
void *ring_take_texts(void);

/* A forked child has its own texts. */
void nvtx_fork(void);
void names_fork(void);

uint32_t ring_thread(void);

/* The tick at which this thread's last recorded call ended: the time, for what need not be exact, without reading the
 * clock once more. */
uint64_t ring_ended(void);

static inline int64_t ring_monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline uint64_t ring_now(void) {
#if defined(__x86_64__)
    if (ring.counts_cycles) return __rdtsc();
#elif defined(__aarch64__)
    if (ring.counts_cycles) {
        uint64_t tick;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(tick));
        return tick;
    }
#endif
    return (uint64_t)ring_monotonic();
}

/* Returns what it counted before. */
static inline uint64_t ring_count(enum Counter counter, uint64_t by) {
    Header *header = ring.header;
    return header ? atomic_fetch_add_explicit(&header->counters[counter], by, memory_order_relaxed) : 0;
}

/* The current turn of recording (even) or pausing (odd). */
static inline uint32_t ring_turn(void) { return atomic_load_explicit(&ring.header->turns, memory_order_relaxed); }

/* Resume or pause recording, if the recorder leaves this to the program. */
void ring_switch(int on);

/* Before the driver's call: the next record's line is loaded meanwhile. */
static inline void ring_expect(void) {
    uint64_t number = atomic_load_explicit(&ring.header->written, memory_order_relaxed);
    __builtin_prefetch(&ring.records[number & ring.mask], 1);
}

/* Write a record; fills in its sequence and thread. */
void ring_write(Record *record);

#endif
