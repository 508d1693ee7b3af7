#include "log.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../calls.h"
#include "../files.h"
#include "../sites.h"
#include "races.h"

enum { CACHE = 1 << 14, DEPTH = 32, PAGE = 65536 };

LogHeader *log_header;
static Row *rows;
static Digest *digests;
static Incident *incidents;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What a copy was last, and its row. */
static struct {
    uint64_t key;
    Row *row;
} cache[CACHE];

static size_t write_names(char *to) {
    static const char *const names[] = {
#define CALL(id, ...) #id,
        CALLS
#undef CALL
        "",
#define X(name) #name,
        LOG_COUNTERS(X)
#undef X
        "",
    };
    size_t length = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t more = strlen(names[i]) + 1;
        if (length + more > LOG_NAMES_BYTES) return 0;
        memcpy(to + length, names[i], more);
        length += more;
    }
    return length;
}

static uint64_t whole_pages(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

int log_open(const char *program) {
    uint64_t rows_at = LOG_HEADER_BYTES + LOG_NAMES_BYTES, digests_at = rows_at + LOG_ROWS * sizeof(Row);
    uint64_t incidents_at = digests_at + LOG_DIGESTS * sizeof(Digest);
    char *map = NULL;
    if (!files_new()) return 0;
    map = files_map(0, whole_pages(incidents_at + LOG_INCIDENTS * sizeof(Incident)));
    if (!map) return files_drop(), 0;
    LogHeader *header = (LogHeader *)map;
    *header = (LogHeader){.version = LOG_VERSION, .pid = (uint32_t)getpid(), .parent = (uint32_t)getppid(),
                          .row_bytes = sizeof(Row), .names_at = LOG_HEADER_BYTES, .rows_at = rows_at,
                          .digests_at = digests_at, .incidents_at = incidents_at, .rows_most = LOG_ROWS,
                          .digests_most = LOG_DIGESTS, .incidents_most = LOG_INCIDENTS,
                          .start_monotonic = now_ns()};
    snprintf(header->program, sizeof header->program, "%s", program);
    if (!write_names(map + LOG_HEADER_BYTES)) return files_drop(), 0;
    rows = (Row *)(map + rows_at), digests = (Digest *)(map + digests_at);
    incidents = (Incident *)(map + incidents_at);
    atomic_thread_fence(memory_order_release);
    memcpy(header->magic, "ITRACES1", 8);
    log_header = header;
    return 1;
}

void log_fork(void) {
    pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    lock = open;
    log_header = NULL, rows = NULL;
    memset(cache, 0, sizeof cache);
    sites_fork();
}

static uint64_t mixed(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ sum >> 29;
}

/* A key of the stack that does not depend on where libraries lie: their names, and the offsets in them. */
static uint64_t key_of_stack(uint32_t call) {
    void *stack[DEPTH];
    Dl_info own, at;
    int depth = backtrace(stack, DEPTH);
    uint64_t key = mixed(UINT64_C(1469598103934665603), call);
    if (!dladdr((void *)log_open, &own)) return key | 1;
    for (int i = 0; i < depth; i++) {
        if (!dladdr((char *)stack[i] - 1, &at) || at.dli_fbase == own.dli_fbase || !at.dli_fname) continue;
        const char *name = strrchr(at.dli_fname, '/');
        for (name = name ? name + 1 : at.dli_fname; *name; name++) key = mixed(key, (unsigned char)*name);
        key = mixed(key, (uint64_t)((char *)stack[i] - (char *)at.dli_fbase));
    }
    return key | 1;
}

static Row *new_row(uint32_t call, uint32_t stack) {
    uint64_t used = atomic_load(&log_header->rows);
    for (uint64_t i = 0; i < used; i++)
        if (rows[i].call == call && rows[i].stack == stack) return &rows[i];
    if (used == LOG_ROWS) return log_count(LOGGED_rows_lost, 1), NULL;
    rows[used].call = call, rows[used].stack = stack, rows[used].key = key_of_stack(call);
    if (!stack) log_count(LOGGED_stacks_lost, 1);
    return &rows[used]; /* not counted yet */
}

Row *log_row(uint32_t call, const void *caller, uint64_t source, uint64_t destination, uint64_t bytes,
             uint64_t stream) {
    uint64_t key = mixed(mixed(mixed(mixed(mixed(call, (uintptr_t)caller), source), destination), bytes), stream) | 1;
    pthread_mutex_lock(&lock);
    unsigned at = (unsigned)(key >> 40) % CACHE;
    Row *row = cache[at].key == key ? cache[at].row : NULL;
    if (!row) {
        row = new_row(call, sites_here() >> SITE_SHIFT);
        if (row == &rows[atomic_load(&log_header->rows)]) {
            row->bytes = bytes, row->source = source, row->destination = destination, row->stream = stream;
            atomic_fetch_add(&log_header->rows, 1);
        }
        if (row) cache[at].key = key, cache[at].row = row;
    }
    if (row && bytes > row->most_bytes) row->most_bytes = bytes;
    pthread_mutex_unlock(&lock);
    return row;
}

static uint32_t number_of(const Row *row) { return row ? (uint32_t)(row - rows) : UINT32_MAX; }

uint64_t log_step(void) { return atomic_load_explicit(&log_header->steps, memory_order_relaxed); }

/* Called with a lock of the caller, in the order of results. */
void log_digest(uint64_t digest, const Row *row) {
    uint64_t at = atomic_load(&log_header->digests);
    atomic_store(&log_header->all_digests, mixed(atomic_load(&log_header->all_digests), digest));
    if (at < LOG_DIGESTS) digests[at] = (Digest){digest, (uint32_t)log_step(), number_of(row)};
    else log_count(LOGGED_digests_lost, 1);
    atomic_store(&log_header->digests, at + 1);
}

void log_incident(uint32_t call, const Row *row, uint64_t address) {
    pthread_mutex_lock(&lock);
    uint64_t at = atomic_load(&log_header->incidents);
    uint32_t stack = sites_here() >> SITE_SHIFT;
    if (at < LOG_INCIDENTS) {
        incidents[at] = (Incident){call, stack, number_of(row), (uint32_t)log_step(), address};
        atomic_store(&log_header->incidents, at + 1);
    } else log_count(LOGGED_incidents_lost, 1);
    pthread_mutex_unlock(&lock);
}
