/* The log of one process: a mapped file, so that what was found outlives any end of the process.
 *
 * Layout, little endian: header (8192 bytes), names of calls and counters (NUL-terminated, an empty one after each
 * list), rows, digests, incidents; the header has all offsets. `tracer/races/logs.py` reads it. Stacks are in the file
 * beside (../sites.c).
 */
#ifndef INTERTOKEN_RACES_LOG_H
#define INTERTOKEN_RACES_LOG_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    LOG_VERSION = 1,
    LOG_HEADER_BYTES = 8192,
    LOG_NAMES_BYTES = 24576,
    LOG_ROWS = 1024,
    LOG_DIGESTS = 1 << 16,
    LOG_INCIDENTS = 1024,
};

/* What the log counts apart from rows. */
#define LOG_COUNTERS(X)                                                                                               \
    X(copies) X(pageable) X(managed) X(from_device) X(during_call) X(captured) X(to_arrays) X(batches_3d)             \
    X(without_stream) X(slots_full) X(witness_refused) X(no_memory) X(graph_launches) X(graph_h2d_nodes)              \
    X(graph_d2h_nodes) X(graph_h2d_copies) X(graph_d2h_copies) X(delays) X(delays_on_host) X(delays_refused)          \
    X(drains) X(drains_given_up) X(holds) X(fetches) X(fetches_lost) X(digests_lost) X(rows_lost) X(streams_lost)     \
    X(incidents_lost) X(stacks_lost) X(entries_left)

enum LogCounter {
#define X(name) LOGGED_##name,
    LOG_COUNTERS(X)
#undef X
    LOG_COUNTER_COUNT
};

/* A call site of copies: what happened there. */
typedef struct {
    uint32_t call, stack; /* which call; its stack in the file beside, 0 if unknown */
    uint64_t key;         /* of the stack, the same in each process of the same programs */
    uint64_t bytes, source, destination, stream; /* of the first copy */
    uint64_t most_bytes;
    _Atomic uint64_t calls, witnessed, checked, sampled, unchecked, refused;
    _Atomic uint64_t bad, bad_excused;       /* copies that arrived otherwise than they were at the call */
    _Atomic uint64_t drained, bad_drained;   /* the host had waited until the stream was idle */
    _Atomic uint64_t given_up, bad_given_up; /* the stream did not become idle */
    _Atomic uint64_t gated, bad_gated;       /* the same, and the program itself held the stream back */
    _Atomic uint64_t delayed;
    _Atomic uint64_t fetched, waited, unwaited; /* results; those overwritten before the program waited for them */
    _Atomic uint64_t first_bad;              /* number of the first bad copy at this site, from 1; 0: none */
    uint64_t bad_offset, bad_step;
    uint8_t bad_was, bad_came, unused[6];
} Row;

typedef struct {
    uint64_t digest;
    uint32_t step, row;
} Digest;

/* Memory was freed while a copy of that row had not arrived. */
typedef struct {
    uint32_t call, stack, row, step;
    uint64_t address;
} Incident;

typedef struct {
    char magic[8]; /* ITRACES1 */
    uint32_t version, pid, parent, row_bytes;
    uint64_t names_at, rows_at, digests_at, incidents_at, rows_most, digests_most, incidents_most;
    int64_t start_monotonic;
    char program[128];
    _Atomic uint64_t rows, digests, incidents, steps, all_digests; /* the last is one digest over all */
    _Atomic uint64_t is_ended; /* the process ran its exit handlers */
    _Atomic uint64_t counters[LOG_COUNTER_COUNT];
} LogHeader;

extern LogHeader *log_header;

/* Create the log of this process; returns whether there is one. */
int log_open(const char *program);
void log_fork(void);

static inline void log_count(enum LogCounter counter, uint64_t by) {
    if (log_header) atomic_fetch_add_explicit(&log_header->counters[counter], by, memory_order_relaxed);
}

static inline void row_count(_Atomic uint64_t *count) { atomic_fetch_add_explicit(count, 1, memory_order_relaxed); }

/* The row of the call site, found again by what it copies. NULL: there are too many. */
Row *log_row(uint32_t call, const void *caller, uint64_t source, uint64_t destination, uint64_t bytes, uint64_t stream);

void log_digest(uint64_t digest, const Row *row);
void log_incident(uint32_t call, const Row *row, uint64_t address);
uint64_t log_step(void);

#endif
