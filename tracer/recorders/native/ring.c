#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "calls.h"
#include "clock.h"
#include "cupti.h"
#include "device.h"
#include "files.h"
#include "held.h"
#include "hot.h"
#include "interpose.h"
#include "sites.h"
#include "stamps.h"

#define RECORDS "INTERTOKEN_LIGHT_RECORDS"
#define PAUSED "INTERTOKEN_LIGHT_PAUSED" /* start paused, until the recorder or ("program") the program resumes */
enum { DEFAULT_RECORDS = 1 << 19, LEAST_RECORDS = 1 << 12, MOST_RECORDS = 1 << 24 };
enum { APART_NS = 50000000, SHARES = 8 };
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
enum { COMM = 17 /* including the newline */ };

Ring ring;
int ring_wraps;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic pid_t begun_in; /* the process whose ring it is, or which has none; 0: not tried */
static char program[64];       /* saved early: a title that the program sets later overwrites argv */
static uint64_t records_wanted = DEFAULT_RECORDS;
static int is_paused, is_programs; /* whether recording begins paused, and whether the program controls the window */
static int has_sites;
static _Thread_local uint32_t thread __attribute__((tls_model("initial-exec")));
static _Thread_local uint64_t ended __attribute__((tls_model("initial-exec")));

static const char names[] =
#define CALL(id, ...) #id "\0"
    CALLS
#undef CALL
#define X(name) "nvtx_" #name "\0"
    RANGE_CALLS(X)
#undef X
#define X(name) #name " callback\0"
    RUN_CALLS(X)
#undef X
    "\0"
#define X(name) #name "\0"
    COUNTERS(X)
#undef X
    ;
_Static_assert(sizeof names <= NAMES_BYTES, "the names fit their place");
_Static_assert(HEADER_BYTES + NAMES_BYTES + PAIRS * sizeof(Pair) <= RECORDS_AT, "what precedes the records does, too");

COLD static uint32_t number_thread(void) { return thread = (uint32_t)syscall(SYS_gettid); }

HOT uint32_t ring_thread(void) { return thread ? thread : number_thread(); }

HOT uint64_t ring_ended(void) { return ended; }

static uint64_t stamps_at(uint64_t records) { return RECORDS_AT + records * sizeof(Record); }

/* Whether the processor's counter runs at a constant rate, also while idle, and is synchronised across cores. */
static int counter_is_even(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    char source[8] = "";
    if (__get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1u << 8) return 1; /* invariant TSC */
    int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, source, 3) < 0) source[0] = 0;
        close(file);
    }
    return strcmp(source, "tsc") == 0;
#elif defined(__aarch64__)
    return 1;
#else
    return 0;
#endif
}

/* The process's name, or the title that it set, from the kernel. */
static void read_title(char title[COMM]) {
    int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    ssize_t length = read(file, title, COMM - 1);
    title[length > 0 && title[length - 1] == '\n' ? length - 1 : 0] = 0;
    close(file);
}

/* A process takes at most this part of the room that is left, so that others that begin later get theirs. */
static uint64_t share(void) { return files_room() / SHARES; }

typedef struct {
    uint64_t records;
    void *map;
    char title[COMM];
    int is_even; /* `counter_is_even` */
} Start;

/* Map a new file, with fewer records if memory is short. */
static int map_file(void *given) {
    Start *start = given;
    uint64_t most;
    read_title(start->title);
    start->is_even = counter_is_even();
    if (!files_new()) return 0;
    most = share();
    for (start->records = LEAST_RECORDS; start->records < records_wanted && start->records < MOST_RECORDS;)
        start->records *= 2;
    while (start->records > LEAST_RECORDS && stamps_at(start->records) + sizeof(Place) > most) start->records /= 2;
    while (start->records >= LEAST_RECORDS && !(start->map = files_map(0, stamps_at(start->records))))
        start->records /= 2;
    if (!start->map) files_drop();
    return start->map != NULL;
}

Place *ring_take_place(unsigned context) {
    return files_map(ring.header->stamps_at + context * sizeof(Place), sizeof(Place));
}

void *ring_take_texts(void) {
    uint64_t most = share(), bytes = MOST_TEXT_BYTES;
    while (bytes > LEAST_TEXT_BYTES && TEXTS_AT + bytes > most) bytes /= 2;
    void *map = files_map(ring.header->texts_at, TEXTS_AT + bytes);
    if (map) atomic_store_explicit(&ring.header->text_bytes, bytes, memory_order_release);
    return map;
}

/* The first pair is kept, so that the pairs span the whole time; the others are overwritten in turn. */
static Pair *pair_of(uint32_t number) { return &ring.pairs[number < 1 ? 0 : 1 + (number - 1) % (PAIRS - 1)]; }

COLD static void write_pair(Pair *pair) {
    uint64_t before = 0, after = UINT64_MAX;
    int64_t monotonic = 0;
    for (int tries = 0; tries < 4; tries++) { /* take the closest: the thread may be preempted in between */
        uint64_t first = ring_now();
        int64_t at = ring_monotonic();
        uint64_t second = ring_now();
        if (second - first < after - before) before = first, after = second, monotonic = at;
    }
    const uint64_t words[] = {before + (after - before) / 2, (uint64_t)monotonic};
    __atomic_store_n(&pair->tick, words[0], __ATOMIC_RELAXED);
    __atomic_store_n(&pair->monotonic, words[1], __ATOMIC_RELAXED);
    __atomic_store_n(&pair->check, check_of(words, 2), __ATOMIC_RELAXED);
}

/* The same moment by two clocks, as close as possible. */
static void write_start(Header *header) {
    int64_t closest = INT64_MAX;
    for (int tries = 0; tries < 4; tries++) {
        struct timespec real;
        int64_t before = ring_monotonic();
        clock_gettime(CLOCK_REALTIME, &real);
        int64_t apart = ring_monotonic() - before;
        if (apart >= closest) continue;
        closest = apart;
        header->start_monotonic = before + apart / 2;
        header->start_realtime = real.tv_sec * INT64_C(1000000000) + real.tv_nsec;
    }
}

static void begin_header(Header *header, const Start *start) {
    struct stat namespace;
    const uint64_t records = start->records;
    const char *title = start->title;
    memcpy(header->magic, RING_MAGIC, sizeof header->magic);
    header->version = RING_VERSION;
    header->header_bytes = HEADER_BYTES;
    header->pid = (uint32_t)getpid();
    header->parent = (uint32_t)getppid();
    header->record_bytes = sizeof(Record);
    header->records = records;
    header->stamps = STAMPS;
    header->chain_stamps = CHAIN_STAMPS;
    header->names_at = HEADER_BYTES;
    header->pairs_at = HEADER_BYTES + NAMES_BYTES;
    header->pairs = PAIRS;
    header->turns = (uint32_t)is_paused;
    header->records_at = RECORDS_AT;
    header->stamps_at = stamps_at(records);
    header->texts_at = header->stamps_at + CONTEXTS * sizeof(Place);
    header->place_bytes = sizeof(Place);
    header->brackets_at = offsetof(Place, brackets);
    header->brackets = BRACKETS;
    if (stat("/proc/self/ns/pid", &namespace) == 0) header->pid_namespace = namespace.st_ino;
    write_start(header);
    if (!title[0] || strncmp(title, program, strlen(title)) == 0) memcpy(header->program, program, sizeof program);
    else snprintf(header->program, sizeof header->program, "%s (%s)", title, program);
    memcpy((char *)header + header->names_at, names, sizeof names);
    header->check = check_of((const uint64_t *)header, offsetof(Header, check) / sizeof(uint64_t));
}

static void begin(void) {
    Start start = {0, NULL, "", 0};
    if (!program[0] || !files_apart(map_file, &start)) {
        if (program[0]) files_say(files_reason(), program);
        return;
    }
    Header *header = start.map;
    begin_header(header, &start);
    ring.records = (Record *)((char *)header + header->records_at);
    ring.pairs = (Pair *)((char *)header + header->pairs_at);
    ring.mask = start.records - 1;
    ring.wraps = ring_wraps;
    ring.has_sites = has_sites;
    ring.counts_cycles = start.is_even;
    write_pair(pair_of(0));
    uint64_t tick = ring_now();
    int64_t begun = ring_monotonic(), ended;
    do ended = ring_monotonic();
    while (ended - begun < APART_NS / 256); /* count ticks for 0.2 ms, or longer where the thread is not running */
    ring.ticks_per_ms = (ring_now() - tick) * 1000000 / (uint64_t)(ended - begun);
    ring.ticks_apart = (int64_t)ring_ticks(APART_NS);
    write_pair(pair_of(1));
    header->pairs_written = 2;
    ring.next_pair = (int64_t)ring_now() + ring.ticks_apart;
    ring.header = header;
}

/* A child process writes to its own ring, or none; it inherits the mapping of its parent's. A process that has tried no
 * ring has nothing to forget. */
static void forget_parent(void) {
    pthread_once_t again = PTHREAD_ONCE_INIT;
    pid_t owner = atomic_load(&begun_in);
    if (owner == getpid() || !owner || !atomic_compare_exchange_strong(&begun_in, &owner, 0))
        return;
    memset(&ring, 0, sizeof ring);
    once = again;
    thread = 0;
    device_fork();
    clock_fork();
    graphs_fork();
    stamps_fork();
    nvtx_fork();
    sites_fork();
    names_fork();
    cupti_fork();
}

/* Names of domains are given without a ring, too. */
static void after_fork(void) {
    nvtx_fork();
    forget_parent();
}

int ring_ready(void) {
    Held held;
    if (ring.is_tried) return ring.header != NULL;
    hold(&held);
    forget_parent(); /* of a bare clone, which ran no handlers of fork */
    begun_in = getpid();
    pthread_once(&once, begin);
    ring.is_tried = 1;
    release(&held);
    return ring.header != NULL;
}

int ring_reached(void) { return ring_wraps && ring_ready(); }

void ring_announce(void) {
    char title[COMM] = "";
    const char *name = program_invocation_short_name, *wanted = getenv(RECORDS), *paused = getenv(PAUSED);
    if (!files_find()) return;
    if (wanted) records_wanted = strtoull(wanted, NULL, 10);
    is_paused = paused != NULL;
    is_programs = paused && strcmp(paused, "program") == 0;
    read_title(title); /* for a script this is the script's name, not its interpreter's */
    snprintf(program, sizeof program, "%s", title[0] && strncmp(title, name, strlen(title)) ? title : name);
    if (!program[0]) strcpy(program, "?");
    has_sites = sites_start();
    device_start();
    madvise(&ring, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK); /* since Linux 4.14 */
    pthread_atfork(NULL, NULL, after_fork);
    files_say(REASON_NONE, program);
}

void ring_switch(int on) {
    uint32_t turn = ring_turn();
    if (is_programs && (turn & 1) == (uint32_t)on) atomic_compare_exchange_strong(&ring.header->turns, &turn, turn + 1);
}

void ring_write_pair(void) { write_pair(pair_of(atomic_fetch_add(&ring.header->pairs_written, 1u))); }

/* The pairs lie as far apart as at least `ticks_apart`. Not in a function of the program that the driver runs, nor for its
 * ranges, is the driver called. */
COLD static void write_next_pair(int64_t now, int may_call) {
    int64_t next = atomic_load_explicit(&ring.next_pair, memory_order_relaxed);
    if (now > next && atomic_compare_exchange_strong(&ring.next_pair, &next, now + ring.ticks_apart))
        ring_write_pair();
    else may_call = 0;
    if (may_call) clock_due(now);
}

/* Put a record into its place, and another pair of clocks into the ring if it is due. */
HOT static inline __attribute__((always_inline)) void put(Record *from, uint64_t number) {
    enum { WORDS = sizeof(Record) / sizeof(uint64_t) };
    const uint64_t *words = (const uint64_t *)from;
    uint64_t *to = (uint64_t *)&ring.records[number & ring.mask];
    from->mark = (number + 1) & ((UINT64_C(1) << MARK_BITS) - 1);
    from->mark |= check_of(words, WORDS) >> MARK_BITS << MARK_BITS;
    /* Word by word: a thread that slept for a whole round of the ring may write here at the same time. */
#pragma GCC unroll 8
    for (size_t i = 1; i < WORDS; i++) __atomic_store_n(to + i, words[i], __ATOMIC_RELAXED);
    __atomic_store_n(to, words[0], __ATOMIC_RELEASE); /* whoever reads the mark finds the text that a range points to */
    int64_t end = (int64_t)(ended = from->end);
    if (end > atomic_load_explicit(&ring.next_pair, memory_order_relaxed))
        write_next_pair(end, from->call < CALL_COUNT);
}

HOT uint64_t ring_write(Record *from) {
    from->thread = ring_thread() | (ring.has_sites && from->call < CALL_COUNT ? sites_here() : 0);
    uint64_t number = atomic_fetch_add_explicit(&ring.header->written, 1, memory_order_relaxed);
    put(from, number);
    return number;
}

/* The last query of this thread that found work unfinished, as it is in the ring. Initialised, so that it is not among what
 * every call uses of a thread (device.c). */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
    Record record;
    uint64_t number;
    uint32_t turn, thread;
} query = {.turn = 1};

/* Whether a query repeats the thread's last record, which is far from being overwritten. */
static int is_again(const Record *record) {
    const Record *last = &query.record;
    return last->end == ended && query.thread == thread && thread && query.turn == ring_turn() &&
           last->call == record->call && last->result == record->result && last->stream == record->stream &&
           last->object == record->object && last->context == record->context &&
           atomic_load_explicit(&ring.header->written, memory_order_relaxed) - query.number <= ring.mask / 2;
}

void ring_write_query(Record *record) {
    if (!is_again(record)) {
        record->bytes = 1;
        query.number = ring_write(record);
        query.thread = thread, query.turn = ring_turn();
    } else {
        record->begin = query.record.begin;
        record->bytes = query.record.bytes + 1;
        record->thread = query.record.thread;
        put(record, query.number);
    }
    query.record = *record;
}
