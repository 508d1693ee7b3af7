/* The ring of one process: a file in shared memory that others can read while it runs and after it died.
 *
 * Layout, little endian, all offsets in the header; `tracer/recorders/light_ring.py` reads it.
 *   header (4096 bytes), names (NUL-terminated: calls, an empty one, counters, an empty one), pairs of clocks, records,
 *   per context the stamps of the program's work, those of the chain that measures a stamp's cost, the board and the
 *   brackets of its device's clock (clock.c); texts (nvtx.c).
 * The file is sparse: blocks for a context, and for the texts, are allocated with the first one.
 */
#ifndef INTERTOKEN_RING_H
#define INTERTOKEN_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#define RING_MAGIC "ITLIGHT1"
enum {
    RING_VERSION = 7,
    HEADER_BYTES = 4096,
    NAMES_BYTES = 8192,
    PAIRS = 1024,
    RECORDS_AT = 1 << 16,   /* after all of these; separately mapped parts start at a page, which has at most 64 KiB */
    CONTEXTS = 32,          /* maximum contexts of a process, including destroyed ones */
    STAMPS = 1 << 17,       /* per context: 2 MiB */
    CHAIN_STAMPS = 1 << 7,  /* never overwritten */
    BRACKETS = 1952,        /* per context; with the chain and the board they take one page of the largest size */
    NO_CONTEXT = 0xff,
    TEXTS_AT = 1 << 16,     /* offset in their part of the file */
    MOST_TEXT_BYTES = 1 << 22,
    LEAST_TEXT_BYTES = 1 << 16,
};

#define NUMBERS 0xffffffu /* of launches of graphs and of runs; then they wrap around */
#define BEFORE (1u << 30)
#define BEHIND (1u << 31)

/* A record of 64 bytes. `mark` is its number + 1 in the lower MARK_BITS, and above them a check of all of it: the reader
 * takes only records whose check fits. So it does not matter in which order the words arrive (aarch64), nor if a thread
 * that slept for a whole round of the ring writes into a newer record. */
typedef struct {
    uint64_t mark;
    uint64_t begin, end;    /* ticks of `ring_now`; the pairs convert them to CLOCK_MONOTONIC */
    uint32_t thread;        /* with its call site above SITE_SHIFT, 0 for none (sites.h) */
    uint16_t call, result;
    uint64_t stream, object, bytes; /* of a query: how many equal ones in a row, from the first begin to the last end */
    uint32_t number;        /* of the launch of a stamped graph, or of the run of launches that contains the launch,
                               with BEHIND if a stamp follows it, and BEFORE if three come right before it */
    uint8_t copy_kind, context;
    uint16_t graph;         /* id of a stamped graph; 0: not stamped */
} Record;

/* Two words that the device writes atomically: its time; sequence << 40 | number << 16 | graph << 1 | is_tail. */
typedef struct {
    uint64_t time, word;
} Stamp;

/* A tick and CLOCK_MONOTONIC at that moment (ns), and a check of both; the first pair is kept, the others are overwritten
 * in turn. */
typedef struct {
    uint64_t tick, monotonic, check;
} Pair;

/* The device's clock was read between two ticks; and a check of all three. The first bracket of a context is kept, the
 * others are overwritten in turn. */
typedef struct {
    uint64_t before, after, time, check;
} Bracket;

/* Through which the host asks the device for its time: what each side writes is in lines of its own. */
typedef struct {
    _Atomic uint64_t asked __attribute__((aligned(128)));          /* up to this question */
    uint64_t time __attribute__((aligned(128))), answered;         /* the device's time at the last answer, and to which */
    uint64_t ended __attribute__((aligned(128))); /* the last question of the kernel that ended last */
} __attribute__((aligned(1024))) Board;

/* What the device and we write for a context. */
typedef struct {
    Stamp work[STAMPS], chain[CHAIN_STAMPS];
    Board board;
    Bracket brackets[BRACKETS];
} Place;

/* A check of words: the sum of their products with odd constants, of which the upper bits depend on all bits
 * (multiply-add hashing: Dietzfelbinger, "Universal hashing and k-wise independent random variables via integer
 * arithmetic without primes", STACS 1996). */
enum { MARK_BITS = 40 };
#define CHECK_FACTOR UINT64_C(0x9e3779b97f4a7c15)
#define CHECK_STEP UINT64_C(0xbf58476d1ce4e5b8) /* even: the factor of each word is odd */
static inline __attribute__((always_inline)) uint64_t check_of(const uint64_t *words, size_t count) {
    uint64_t sum = 0;
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++) sum += words[i] * (CHECK_FACTOR + i * CHECK_STEP);
    return sum;
}

#define COUNTERS(X)                                                                                                   \
    X(runs) X(runs_with_stamps) X(run_stamps_ns) X(runs_left) X(launches_between) X(stamps_failed)                 \
    X(graphs_stamped) X(graphs_updated) X(graphs_left_conditional) X(graphs_left_memory) X(graphs_left_device)        \
    X(graphs_left_empty) X(graphs_left_many) X(graphs_left_refused) X(graphs_left_captured) X(graphs_left_context)    \
    X(graphs_left_unknown)                                                                                            \
    X(brackets) X(brackets_late) X(brackets_refused) X(brackets_serial) X(brackets_threadless) X(brackets_ns)             \
    X(functions_captured)                                                                                             \
    X(stamping_ns) X(entries_left) X(contexts_left) X(names_left) X(cupti_dropped) X(cupti_buffers_left) X(cupti_ended) \
    X(refused_space) X(refused_size) X(refused_files) X(refused_memory) X(refused_seccomp) X(refused_folder)

/* The recorded NVTX calls, numbered after the others. */
#define RANGE_CALLS(X) X(mark) X(push) X(pop) X(start) X(end)

enum RangeCall {
#define X(name) NVTX_##name,
    RANGE_CALLS(X)
#undef X
    RANGE_CALL_COUNT
};

/* The calls that put a function of the host on a stream; its own runs are numbered after the ranges. */
#define RUN_CALLS(X) X(cuLaunchHostFunc) X(cuStreamAddCallback)
enum RunCall {
#define X(name) RUN_##name,
    RUN_CALLS(X)
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
    uint64_t place_bytes, brackets_at, brackets; /* of a context: size, offset in it, capacity */
    int64_t start_monotonic, start_realtime;
    uint64_t pid_namespace;                 /* the namespace of `pid` */
    uint32_t parent, pairs;
    char program[128];
    uint64_t check;                         /* of all before it: the reader takes only a header whose check fits */
    /* What each call uses is in one cache line. */
    _Atomic uint64_t written __attribute__((aligned(64)));
    _Atomic uint32_t turns;                 /* odd: recording is paused; the reader may switch it */
    _Atomic uint32_t pairs_written;
    _Atomic uint64_t text_bytes;            /* 0: there are none yet */
    _Atomic uint32_t contexts_used;
    _Atomic uint64_t counters[COUNTER_COUNT] __attribute__((aligned(64)));
    ContextFacts contexts[CONTEXTS];
} Header;

_Static_assert(sizeof(Place) == STAMPS * sizeof(Stamp) + 65536, "a whole number of pages");
_Static_assert(sizeof(Record) == 64, "a record is a cache line");
_Static_assert(sizeof(Header) <= HEADER_BYTES, "the header is a page");
_Static_assert(offsetof(Header, check) % sizeof(uint64_t) == 0, "the check is of words");

#if defined(__aarch64__)
#define PAGE_BYTES 65536 /* the largest */
#else
#define PAGE_BYTES 4096
#endif

/* What calls use is in one cache line, because a program's own work evicts it between two calls. The line has a page of
 * its own, which the kernel clears in a child process (MADV_WIPEONFORK): one made by a bare `clone`, which runs no
 * handlers of fork, never writes into the ring of its parent. */
typedef struct {
    _Atomic(Header *) header; /* NULL: nothing is recorded in this process */
    Record *records;
    Pair *pairs;
    uint64_t mask;
    _Atomic int64_t next_pair; /* the tick from which another pair is due */
    int64_t ticks_apart;       /* minimum between two pairs */
    uint64_t ticks_per_ms;     /* whole numbers: floating point would raise the program's exceptions */
    _Atomic _Bool is_tried;    /* whether creating the ring was tried in this process */
    _Bool wraps;               /* whether the driver's calls are recorded; otherwise CUPTI records them */
    _Bool counts_cycles;       /* whether ticks are the processor's counter; otherwise nanoseconds */
    _Bool has_sites;           /* whether records get call sites */
} __attribute__((aligned(PAGE_BYTES))) Ring;

_Static_assert(offsetof(Ring, has_sites) < 64, "a cache line");

extern Ring ring;
extern int ring_wraps; /* whether the driver's calls are to be recorded in this program */

/* Create the ring of this process at its first CUDA call; returns whether there is one. */
int ring_ready(void) __attribute__((cold));

/* The same for a call of the driver, which may be without a ring because CUPTI records it. */
int ring_reached(void) __attribute__((cold));

/* Announce a program that could be recorded, with a line in the file `programs`. Called before any other thread runs:
 * everything that the environment says is read here. */
void ring_announce(void);

/* Allocate the blocks of a context's place and touch their pages. NULL if there is no space. */
Place *ring_take_place(unsigned context);

/* The same for the texts: TEXTS_AT bytes, then as many as the header's `text_bytes` says. */
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
    if (ring.counts_cycles) return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    if (ring.counts_cycles) {
        uint64_t tick;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(tick));
        return tick;
    }
#endif
    return (uint64_t)ring_monotonic();
}

static inline uint64_t ring_ns(uint64_t ticks) {
    return (uint64_t)((unsigned __int128)ticks * 1000000 / ring.ticks_per_ms);
}

static inline uint64_t ring_ticks(uint64_t ns) { return ns * ring.ticks_per_ms / 1000000; }

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

/* Another pair of clocks, beside what is timed by ticks but is no record. */
void ring_write_pair(void);

/* Write a record; fills in its sequence and thread. Returns the number of records before it. */
uint64_t ring_write(Record *record);

/* The same for a query that found work unfinished. If the thread's last record is of an equal one, that is extended: a
 * program that polls would overwrite the whole ring in a second. */
void ring_write_query(Record *record);

#endif
