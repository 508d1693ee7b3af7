/* The ring of one process: a file in shared memory that others read while it runs and after it died.
 *
 * Layout, little endian, all offsets in the header; `tracer/recorders/light_ring.py` reads it.
 *   header (4096 bytes), names (NUL-terminated: calls, a blank, counters, a blank), pairs of clocks, records, stamps of
 *   each context: those of the program's work, then those of the chain that tells what a stamp costs; texts (nvtx.c).
 * The file is sparse: the stamps of a context have blocks from its first stamp on, the texts from the first on.
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
    RING_VERSION = 3,
    HEADER_BYTES = 4096,
    NAMES_BYTES = 8192,
    PAIRS = 1024,
    RECORDS_AT = 1 << 16,   /* behind all of that; what is mapped by itself begins with a page, of 64 KiB at most */
    CONTEXTS = 32,          /* contexts of a process that are told apart, also those that are gone */
    STAMPS = 1 << 17,       /* of each context: 2 MiB */
    CHAIN_STAMPS = 1 << 12, /* which are not overwritten: one page of the largest size */
    NO_CONTEXT = 0xff,
    TEXTS_AT = 1 << 16,     /* in their part of the file */
    TEXT_BYTES = 1 << 22,
};

#define NUMBERS 0xffffffu /* that launches of graphs and runs have; then they begin anew */
#define BEFORE (1u << 30)
#define BEHIND (1u << 31)

/* A record of 64 bytes. `sequence` is its number + 1 once it is whole, and 0 while it is being written. */
typedef struct {
    _Atomic uint64_t sequence;
    uint64_t begin, end;    /* ticks of `ring_now`; the pairs say what they are in CLOCK_MONOTONIC */
    uint32_t thread;
    uint16_t call, result;
    uint64_t stream, object, bytes;
    uint32_t number;        /* of the launches of a stamped graph, or of the run of launches that a launch lies in,
                               with BEHIND if a stamp follows it, and BEFORE if three come right before it */
    uint8_t copy_kind, context;
    uint16_t graph;         /* id of a stamped graph; 0: not stamped */
} Record;

/* Two words that the device writes at once: its time; sequence << 40 | number << 16 | graph << 1 | is_tail. */
typedef struct {
    uint64_t time, word;
} Stamp;

/* A tick and what CLOCK_MONOTONIC said then (ns); the first one is kept, the others are overwritten in turn. */
typedef struct {
    _Atomic uint64_t tick;
    _Atomic int64_t monotonic;
} Pair;

#define COUNTERS(X)                                                                                                   \
    X(graphs_stamped) X(graphs_updated) X(graphs_left_conditional) X(graphs_left_memory) X(graphs_left_device)        \
    X(graphs_left_empty) X(graphs_left_many) X(graphs_left_refused) X(runs) X(stamps_failed) X(entries_left)          \
    X(stamping_ns) X(contexts_left) X(runs_left) X(launches_between) X(graphs_left_captured) X(graphs_left_context)

/* What of NVTX is recorded, numbered behind the calls. */
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
    char name[48];
} ContextFacts;

typedef struct {
    char magic[8];
    uint32_t version, header_bytes;
    uint32_t pid, record_bytes;
    uint64_t records, stamps, chain_stamps; /* how many of each fit (stamps: of each context) */
    uint64_t names_at, pairs_at, records_at, stamps_at, texts_at;
    _Atomic uint64_t text_bytes;            /* 0: there are none yet */
    int64_t start_monotonic, start_realtime;
    uint64_t pid_namespace;                 /* in which `pid` is the process's */
    uint32_t parent, contexts_used, pairs;
    _Atomic uint32_t turns;                 /* odd: recording is paused; whoever reads may switch it */
    char program[128];
    _Atomic uint64_t written __attribute__((aligned(64)));
    _Atomic uint32_t pairs_written __attribute__((aligned(64)));
    _Atomic uint64_t counters[COUNTER_COUNT] __attribute__((aligned(64)));
    ContextFacts contexts[CONTEXTS];
} Header;

_Static_assert(sizeof(Record) == 64, "a record is a cache line");
_Static_assert(sizeof(Header) <= HEADER_BYTES, "the header is a page");

typedef struct {
    _Atomic(Header *) header; /* NULL: nothing is recorded in this process */
    Record *records;
    Pair *pairs;
    uint64_t mask;
    int64_t ticks_apart;  /* of two pairs, at least */
    double ticks_per_us;
    int counts_cycles;    /* whether a tick is one of the processor's counter, or a nanosecond */
} Ring;

extern Ring ring;

/* Make the ring of this process at its first CUDA call; whether there is one. */
int ring_ready(void);

/* Say that a program runs that could be recorded; a line in the file `programs`. */
void ring_announce(void);

/* Take the blocks of a context's stamps and touch their pages: those of the program's work, then those of the chain.
 * NULL if there is no room. */
Stamp *ring_take_stamps(unsigned context);

/* The same of the texts. */
void *ring_take_texts(void);

/* A forked child has texts of its own. */
void nvtx_fork(void);

uint32_t ring_thread(void);

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

static inline void ring_count(enum Counter counter, uint64_t by) {
    Header *header = ring.header;
    if (header) atomic_fetch_add_explicit(&header->counters[counter], by, memory_order_relaxed);
}

/* Which turn of recording (even) and pausing (odd) it is. */
static inline uint32_t ring_turn(void) { return atomic_load_explicit(&ring.header->turns, memory_order_relaxed); }

/* Record from now on, or pause, where the recorder leaves it to the program. */
void ring_switch(int on);

/* Write a record, of which sequence and thread are filled in here. */
void ring_write(Record *record);

#endif
