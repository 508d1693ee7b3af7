#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "calls.h"
#include "cupti.h"
#include "device.h"
#include "files.h"
#include "hot.h"
#include "interpose.h"
#include "sites.h"
#include "stamps.h"

#define RECORDS "INTERTOKEN_LIGHT_RECORDS"
#define PAUSED "INTERTOKEN_LIGHT_PAUSED" /* start paused, until the recorder or ("program") the program resumes */
enum { DEFAULT_RECORDS = 1 << 19, LEAST_RECORDS = 1 << 12, MOST_RECORDS = 1 << 24 };
enum { APART_NS = 50000000 };
enum { COMM = 17 /* including the newline */ };
#define STAMP_BYTES ((STAMPS + CHAIN_STAMPS) * (uint64_t)sizeof(Stamp)) /* per context */

HOT_DATA Ring ring;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char program[64]; /* saved early: a title that the program sets later overwrites argv */
static int is_programs;  /* whether the program controls the window */
static _Thread_local uint32_t thread __attribute__((tls_model("initial-exec")));
static _Thread_local uint64_t ended __attribute__((tls_model("initial-exec")));

static const char names[] =
#define CALL(id, ...) #id "\0"
    CALLS
#undef CALL
#define X(name) "nvtx_" #name "\0"
    RANGE_CALLS(X)
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

/* Map a new file, with fewer records if memory is short. */
static void *map_file(uint64_t *records) {
    const char *text = getenv(RECORDS);
    const uint64_t wanted = text ? strtoull(text, NULL, 10) : DEFAULT_RECORDS;
    void *map = NULL;
    if (!files_new()) return NULL;
    for (*records = LEAST_RECORDS; *records < wanted && *records < MOST_RECORDS;) *records *= 2;
    for (; *records >= LEAST_RECORDS && !(map = files_map(0, stamps_at(*records)));) *records /= 2;
    if (!map) files_drop();
    return map;
}

Stamp *ring_take_stamps(unsigned context) {
    return files_map(ring.header->stamps_at + context * STAMP_BYTES, STAMP_BYTES);
}

void *ring_take_texts(void) {
    void *map = files_map(ring.header->texts_at, TEXTS_AT + TEXT_BYTES);
    if (map) ring.header->text_bytes = TEXT_BYTES;
    return map;
}

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
    atomic_store_explicit(&pair->monotonic, 0, memory_order_relaxed);
    atomic_store_explicit(&pair->tick, before + (after - before) / 2, memory_order_release);
    atomic_store_explicit(&pair->monotonic, monotonic, memory_order_release);
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

/* The process's name, or the title that it set, from the kernel. */
static void read_title(char title[COMM]) {
    int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    ssize_t length = read(file, title, COMM - 1);
    title[length > 0 && title[length - 1] == '\n' ? length - 1 : 0] = 0;
    close(file);
}

static void begin_header(Header *header, uint64_t records) {
    struct stat namespace;
    const char *paused = getenv(PAUSED);
    char title[COMM] = "";
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
    header->turns = paused != NULL;
    is_programs = paused && strcmp(paused, "program") == 0;
    header->records_at = RECORDS_AT;
    header->stamps_at = stamps_at(records);
    header->texts_at = header->stamps_at + CONTEXTS * STAMP_BYTES;
    if (stat("/proc/self/ns/pid", &namespace) == 0) header->pid_namespace = namespace.st_ino;
    write_start(header);
    read_title(title);
    if (!title[0] || strncmp(title, program, strlen(title)) == 0) memcpy(header->program, program, sizeof program);
    else snprintf(header->program, sizeof header->program, "%s (%s)", title, program);
    memcpy((char *)header + header->names_at, names, sizeof names);
    atomic_thread_fence(memory_order_release);
    memcpy(header->magic, RING_MAGIC, sizeof header->magic);
}

static void begin(void) {
    uint64_t records;
    char *map = program[0] ? map_file(&records) : NULL;
    if (!map) {
        if (program[0]) files_say("!", program); /* no space */
        return;
    }
    Header *header = (Header *)map;
    begin_header(header, records);
    ring.records = (Record *)(map + header->records_at);
    ring.pairs = (Pair *)(map + header->pairs_at);
    ring.mask = records - 1;
    ring.counts_cycles = counter_is_even();
    write_pair(pair_of(0));
    uint64_t tick = ring_now();
    int64_t begun = ring_monotonic(), ended;
    do ended = ring_monotonic();
    while (ended - begun < APART_NS / 256); /* count ticks for 0.2 ms, or longer where the thread is not running */
    ring.ticks_per_us = 1e3 * (double)(ring_now() - tick) / (double)(ended - begun);
    ring.ticks_apart = (int64_t)(APART_NS / 1000 * ring.ticks_per_us);
    write_pair(pair_of(1));
    header->pairs_written = 2;
    ring.next_pair = (int64_t)ring_now() + ring.ticks_apart;
    ring.header = header;
}

int ring_ready(void) {
    pthread_once(&once, begin);
    return ring.header != NULL;
}

/* A forked child writes to its own ring, or none; it inherits the mapping of its parent's. */
static void forget_parent(void) {
    pthread_once_t again = PTHREAD_ONCE_INIT;
    ring.header = NULL;
    once = again;
    thread = 0;
    device_fork();
    graphs_fork();
    stamps_fork();
    nvtx_fork();
    sites_fork();
    names_fork();
    cupti_fork();
}

void ring_announce(void) {
    char title[COMM] = "";
    const char *name = program_invocation_short_name;
    if (!files_find()) return;
    read_title(title); /* for a script this is the script's name, not its interpreter's */
    snprintf(program, sizeof program, "%s", title[0] && strncmp(title, name, strlen(title)) ? title : name);
    ring.has_sites = sites_start();
    pthread_atfork(NULL, NULL, forget_parent);
    files_say("", program);
}

void ring_switch(int on) {
    uint32_t turn = ring_turn();
    if (is_programs && (turn & 1) == (uint32_t)on) atomic_compare_exchange_strong(&ring.header->turns, &turn, turn + 1);
}

/* The pairs lie as far apart as at least `ticks_apart`. */
COLD static void write_next_pair(int64_t now) {
    int64_t next = atomic_load_explicit(&ring.next_pair, memory_order_relaxed);
    if (now > next && atomic_compare_exchange_strong(&ring.next_pair, &next, now + ring.ticks_apart))
        write_pair(pair_of(atomic_fetch_add(&ring.header->pairs_written, 1u)));
}

HOT void ring_write(Record *from) {
    enum { WORDS = sizeof(Record) / sizeof(uint64_t) };
    from->thread = ring_thread() | (ring.has_sites && from->call < CALL_COUNT ? sites_here() : 0);
    Header *header = ring.header;
    uint64_t number = atomic_fetch_add_explicit(&header->written, 1, memory_order_relaxed);
    Record *to = &ring.records[number & ring.mask];
    atomic_store_explicit(&to->sequence, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    /* Word by word: a thread that slept for a whole round of the ring may write here at the same time. */
    for (size_t i = 1; i < WORDS; i++)
        __atomic_store_n((uint64_t *)to + i, ((const uint64_t *)from)[i], __ATOMIC_RELAXED);
    atomic_store_explicit(&to->sequence, number + 1, memory_order_release);
    int64_t end = (int64_t)(ended = from->end);
    if (end > atomic_load_explicit(&ring.next_pair, memory_order_relaxed)) write_next_pair(end);
}
