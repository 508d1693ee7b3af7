/* Settings, the begin and end of a process, and what interposing needs of the rest of a library (../interpose.c). */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../cupti.h"
#include "../device.h"
#include "../files.h"
#include "../held.h"
#include "../sites.h"
#include "races.h"

#define WANTED "INTERTOKEN_RACES"

Settings settings = {
    .sample = 1 << 16, .per_mille = 1000, .gated_ms = 10, .hold_us = 2000, .digests = 1, .slots = 2048,
};
Ours ours;
Ring ring; /* there is none: what others count in it is not kept */
int ring_wraps;

static const struct {
    const char *name;
    uint64_t *value;
} names[] = {
    {"witness", &settings.witness}, {"sample", &settings.sample}, {"kinds", &settings.kinds},
    {"delay_us", &settings.delay_us}, {"per_mille", &settings.per_mille}, {"seed", &settings.seed},
    {"site", &settings.site}, {"ordinal", &settings.ordinal}, {"drain_ms", &settings.drain_ms},
    {"gated_ms", &settings.gated_ms}, {"hold_us", &settings.hold_us}, {"digests", &settings.digests},
    {"slots", &settings.slots},
};

enum { UNTRIED, ON, OFF };
static _Atomic int state, is_prepared;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local __attribute__((tls_model("initial-exec"))) int is_ours;
static char program[128];

static void read_settings(const char *text) {
    for (size_t length; *text; text += length + (text[length] == ',')) {
        length = strcspn(text, ",");
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            size_t name = strlen(names[i].name);
            if (length > name && text[name] == '=' && strncmp(text, names[i].name, name) == 0)
                *names[i].value = strtoull(text + name + 1, NULL, 10);
        }
    }
    if (settings.sample < 4096) settings.sample = 4096;
    if (settings.sample > 1 << 16) settings.sample = 1 << 16;
    if (settings.slots < 1 || settings.slots > 2048) settings.slots = 2048;
}

static void after_fork(void) {
    pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    starting = open;
    if (atomic_exchange(&state, UNTRIED) != ON) return;
    atomic_store(&is_prepared, 0);
    log_fork(), streams_fork(), delays_fork(), witness_fork(), digest_fork();
}

/* The constructor of ../interpose.c calls it before any other thread runs. */
void ring_announce(void) {
    const char *text = getenv(WANTED);
    if (!text || !files_find()) {
        atomic_store(&state, OFF);
        return;
    }
    read_settings(text);
    snprintf(program, sizeof program, "%s", program_invocation_short_name);
    sites_start();
    pthread_atfork(NULL, NULL, after_fork);
    files_say(REASON_NONE, program[0] ? program : "?");
}

int cupti_alone(void) { return 0; }
void cupti_find_endings(void *end, void *end_as_well) { (void)end, (void)end_as_well; }

void device_find(void) {
#define X(name, params) ours.name = (Result(*) params)interpose_driver(#name);
    OUR_CALLS(X)
#undef X
}

static void start(void) {
    Held held;
    hold(&held);
    pthread_mutex_lock(&starting);
    if (atomic_load(&state) == UNTRIED) atomic_store(&state, log_open(program) ? ON : OFF);
    pthread_mutex_unlock(&starting);
    release(&held);
}

/* Not before the program has a context. */
static void prepare(void) {
    int needs_memory = settings.witness || settings.delay_us || settings.drain_ms;
    Inside before = inside();
    if (!needs_memory || witness_has_memory()) atomic_store(&is_prepared, 1);
    outside(before);
}

int races_on(void) {
    if (is_ours) return 0;
    if (atomic_load_explicit(&state, memory_order_acquire) == UNTRIED) {
        is_ours = 1;
        start();
        is_ours = 0;
    }
    if (atomic_load_explicit(&state, memory_order_acquire) != ON) return 0;
    if (!atomic_load_explicit(&is_prepared, memory_order_acquire)) prepare();
    return 1;
}

Inside inside(void) {
    Inside before = {CAPTURE_MODE_RELAXED, is_ours};
    is_ours = 1;
    if (!ours.cuThreadExchangeStreamCaptureMode || ours.cuThreadExchangeStreamCaptureMode(&before.mode))
        before.mode = -1;
    return before;
}

void outside(Inside before) {
    if (before.mode >= 0) ours.cuThreadExchangeStreamCaptureMode(&before.mode);
    is_ours = before.is_ours;
}

void races_host_wait(uint64_t us) {
    int64_t until = now_ns() + (int64_t)us * 1000;
    while (now_ns() < until) sched_yield();
}

/* At the end, what is on its way still counts, for a while. */
__attribute__((destructor)) static void end(void) {
    if (atomic_load(&state) != ON) return;
    witness_settle(INT64_C(1000000000));
    atomic_store(&log_header->is_ended, 1);
}
