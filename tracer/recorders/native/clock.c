#include "clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device.h"
#include "files.h"
#include "held.h"
#include "interpose.h"

enum {
    QUESTIONS = 8, /* of a burst, of which the one answered soonest is kept */
    TRIES = 3,     /* of the first burst, which may find the host or the device busy */
    FIRST_NS = 100000000, MOST_APART_NS = 1000000000, /* the times between bursts double up to the latter */
    IDLE_NS = 250000000, AGAIN_NS = 500000000, /* without a call for so long our thread ends, for so long at least */
    SOON_NS = 100000,   /* a kernel starts by then on a device that has room for it */
    LATE_NS = 5000000,  /* or by then: our own thread waits for so long */
    PART_NS = 50000,    /* sleeping for so long at a time */
    ANSWER_NS = 50000,  /* to a question */
    END_NS = 30000000,  /* a process that exits waits no longer for the last burst */
    STACK_BYTES = 1 << 18,
    MPS_ENABLED = 133,  /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED */
};

enum State { NONE, RUNS, ENDING, ENDED };

static struct {
    uint64_t asked;   /* the last question to which a kernel was sent */
    uint64_t settled; /* the tick from which a call that may not destroy the context is worth another bracket */
    uint32_t taken;   /* brackets */
    _Atomic uint8_t is_known, is_serial;
} clocks[CONTEXTS];

static Lock lock = LOCK_OPEN; /* of bursts, and of destroying contexts */
static _Thread_local __attribute__((tls_model("initial-exec"))) uint8_t has_lock;
static _Atomic uint32_t state;     /* of our thread: a futex */
static _Atomic uint32_t is_called; /* whether the last burst was asked for: a futex */
static _Atomic int64_t due = INT64_MAX; /* the tick of the next burst */
static _Atomic uint64_t seen;      /* number of records at the last burst */
static _Atomic int is_threadless, is_registered;
static int is_one_queue, may_be_shared, is_blocking;

void clock_find(void) {
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS"), *blocks = getenv("CUDA_LAUNCH_BLOCKING");
    is_blocking = blocks && strcmp(blocks, "1") == 0; /* a launch waits for the kernel, which waits for us */
    is_one_queue = queues && strcmp(queues, "1") == 0;
    may_be_shared = getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL || access("/tmp/nvidia-mps/control", F_OK) == 0;
}

/* Without waiting: while a context is destroyed, which may take long, there is no burst. */
static int try_lock(void) {
    if (has_lock) return 0;
    has_lock = 1; /* before: a handler may come in between */
    return pthread_mutex_trylock(&lock.mutex) == 0 || (has_lock = 0);
}

static int wait_on(_Atomic uint32_t *word, uint32_t value, int64_t ns) {
    const struct timespec most = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return (int)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &most, NULL, 0);
}

static void set(_Atomic uint32_t *word, uint32_t value) {
    atomic_store(word, value);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static uint64_t answered(const Board *board) { return __atomic_load_n(&board->answered, __ATOMIC_ACQUIRE); }

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The tick, no earlier than what was read before. */
static inline uint64_t now_behind(void) {
#if defined(__x86_64__)
    __builtin_ia32_lfence();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
    return ring_now();
}

static int waits_for(const Board *board, uint64_t question, uint64_t ns) {
    for (uint64_t until = ring_now() + ring_ticks(ns); answered(board) < question; pause_briefly())
        if (ring_now() > until) return answered(board) >= question;
    return 1;
}

static int starts(const Board *board, uint64_t first, int may_sleep) {
    if (waits_for(board, first, SOON_NS)) return 1;
    for (uint64_t until = ring_now() + ring_ticks(LATE_NS); may_sleep && ring_now() < until;) {
        wait_on(&is_called, atomic_load(&is_called), PART_NS);
        if (answered(board) >= first) return 1;
        if (atomic_load(&is_called)) return 0;
    }
    return 0;
}

/* Ask until the kernel has answered all; the narrowest bracket, of which `after` is 0 if there is none. */
static Bracket ask(Board *board, uint64_t first) {
    Bracket best = {0, 0, 0, 0};
    for (uint64_t question = first + 1; question <= first + QUESTIONS; question++) {
        uint64_t before = ring_now();
        atomic_store_explicit(&board->asked, question, memory_order_release);
        if (!waits_for(board, question, ANSWER_NS)) break;
        uint64_t after = now_behind(), time = __atomic_load_n(&board->time, __ATOMIC_RELAXED);
        if (!best.after || after - before < best.after - best.before) best = (Bracket){before, after, time, 0};
    }
    return best;
}

static void keep(uint8_t context, const Bracket *bracket) {
    uint32_t number = clocks[context].taken++;
    Bracket *to = &asides[context].place->brackets[number < 1 ? 0 : 1 + (number - 1) % (BRACKETS - 1)];
    const uint64_t words[] = {bracket->before, bracket->after, bracket->time};
    __atomic_store_n(&to->before, words[0], __ATOMIC_RELAXED);
    __atomic_store_n(&to->after, words[1], __ATOMIC_RELAXED);
    __atomic_store_n(&to->time, words[2], __ATOMIC_RELAXED);
    __atomic_store_n(&to->check, check_of(words, 3), __ATOMIC_RELAXED);
    ring_write_pair();
    ring_count(COUNT_brackets, 1);
}

/* One burst of the current context, under the lock; returns whether there is no need to try again. */
static int burst(uint8_t context, int may_sleep, int *is_refused) {
    Result (*launch)(Function, GRID, Stream, void **, void **) = real_call(CALL_cuLaunchKernel);
    const Aside *aside = &asides[context];
    Board *board = &aside->place->board;
    Arguments a;
    *is_refused = 0;
    if (__atomic_load_n(&board->ended, __ATOMIC_ACQUIRE) < clocks[context].asked) /* the last one still waits */
        return ring_count(COUNT_brackets_late, 1), 1;
    uint64_t since = ring_now(), first = clocks[context].asked + 1;
    KernelNode kernel = device_answers(context, first, first + QUESTIONS, &a);
    *is_refused = !launch || launch(kernel.function, 1, 1, 1, 1, 1, 1, 0, aside->stream, kernel.parameters, NULL);
    if (*is_refused) return ring_count(COUNT_brackets_refused, 1), 0;
    clocks[context].asked = first + QUESTIONS;
    clocks[context].settled = since + ring_ticks(FIRST_NS);
    Bracket bracket = starts(board, first, may_sleep) ? ask(board, first) : (Bracket){0, 0, 0, 0};
    if (bracket.after) keep(context, &bracket);
    else ring_count(COUNT_brackets_late, 1);
    ring_count(COUNT_brackets_ns, ring_ns(ring_now() - since));
    return bracket.after != 0;
}

/* One of any context. One in which launches fail is left alone from then on. */
static void enter_burst(uint8_t context, int may_sleep) {
    if (!atomic_load_explicit(&clocks[context].is_known, memory_order_acquire)) return;
    int is_refused, entered = device_enter(context);
    if (entered < 0) return;
    burst(context, may_sleep, &is_refused);
    if (is_refused) clock_forget(context);
    device_leave(entered);
}

static void burst_all(int may_sleep, int is_last) {
    int mode = CAPTURE_MODE_RELAXED; /* otherwise captures of other threads may forbid it */
    uint64_t written = atomic_load(&ring.header->written);
    device_driver()->cuThreadExchangeStreamCaptureMode(&mode);
    for (unsigned at = 0; at < device_count(); at++) {
        if ((!is_last && atomic_load(&clocks[at].is_serial)) || !try_lock()) continue;
        enter_burst((uint8_t)at, may_sleep);
        lock_give(&lock, &has_lock);
    }
    device_driver()->cuThreadExchangeStreamCaptureMode(&mode);
    atomic_store(&seen, written);
}

static int is_idle(void) { return atomic_load(&ring.header->written) == atomic_load(&seen); }

/* Until the process exits, or is idle. */
static void *run(void *nothing) {
    uint64_t apart = FIRST_NS, next = 0, before = 0, changed = ring_now();
    uint32_t runs = RUNS;
    pthread_setname_np(pthread_self(), "intertoken");
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns */
    while (!atomic_load(&is_called)) {
        uint64_t written = atomic_load(&ring.header->written), now = ring_now();
        if (written != before) before = written, changed = now;
        int is_quiet = now - changed >= ring_ticks(IDLE_NS);
        if (now >= next || (is_quiet && !is_idle())) {
            burst_all(1, 0);
            next = now + ring_ticks(apart);
            apart = apart < MOST_APART_NS / 2 ? 2 * apart : MOST_APART_NS;
        }
        if (is_quiet) break;
        uint64_t left = next > now ? ring_ns(next - now) : 0;
        wait_on(&is_called, 0, (int64_t)(left < IDLE_NS ? left : IDLE_NS));
    }
    atomic_store(&due, (int64_t)(ring_now() + ring_ticks(AGAIN_NS)));
    if (atomic_compare_exchange_strong(&state, &runs, NONE)) return nothing;
    burst_all(0, 1);
    return set(&state, ENDED), nothing;
}

static int start(void) {
    pthread_attr_t how;
    pthread_t thread;
    pthread_attr_init(&how);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&how, STACK_BYTES);
    int result = pthread_create(&thread, &how, run, NULL);
    pthread_attr_destroy(&how);
    return result == 0;
}

/* Make the thread, unless this process has confined itself, or this thread may be in the handler of a signal: it must not
 * allocate memory then. */
static int try_start(const Held *held) {
    uint32_t none = NONE;
    if (!sigisemptyset(&held->signals) || atomic_load(&is_threadless)) return 0;
    if (!files_free() || !atomic_compare_exchange_strong(&state, &none, RUNS)) return 0;
    if (start()) return 1;
    atomic_store(&state, NONE);
    atomic_store(&is_threadless, 1);
    return ring_count(COUNT_brackets_threadless, 1), 0;
}

void clock_due(int64_t now) {
    int64_t when = atomic_load_explicit(&due, memory_order_relaxed);
    if (now < when || atomic_load(&state) != NONE) return;
    if (!atomic_compare_exchange_strong(&due, &when, now + (int64_t)ring_ticks(MOST_APART_NS))) return;
    Held held;
    hold(&held);
    if (!try_start(&held) && atomic_load(&state) == NONE) burst_all(0, 0);
    release(&held);
}

/* Before the process exits. Another thread does it: this one may be inside the driver, with a lock of it, if a signal's
 * handler ends the process. */
static void end(void) {
    Held held;
    uint32_t now = RUNS;
    if (!ring.header || !device_count()) return; /* a child of a fork */
    hold(&held);
    if (atomic_load(&state) == NONE && !is_idle()) try_start(&held);
    if (atomic_compare_exchange_strong(&state, &now, ENDING)) {
        const int64_t until = ring_monotonic() + END_NS;
        set(&is_called, 1);
        for (int64_t left; atomic_load(&state) == ENDING && (left = until - ring_monotonic()) > 0;)
            wait_on(&state, ENDING, left);
    }
    atomic_store(&state, ENDED);
    release(&held);
}

/* Called with signals held. Nobody else makes bursts of the context yet. */
void clock_start(uint8_t context) {
    const Driver *driver = device_driver();
    int is_shared = 0, device = ring.header->contexts[context].device;
    if (driver->cuDeviceGetAttribute && driver->cuDeviceGetAttribute(&is_shared, MPS_ENABLED, device)) is_shared = 0;
    int is_serial = is_one_queue || is_shared || may_be_shared;
    int64_t never = INT64_MAX;
    if (is_blocking) {
        ring_count(COUNT_brackets_refused, 1);
        return;
    }
    clocks[context].asked = clocks[context].taken = 0;
    atomic_store(&clocks[context].is_serial, (uint8_t)is_serial);
    int is_refused = 0;
    for (int tries = 0; tries < TRIES && !is_refused && !burst(context, 0, &is_refused);) tries++;
    atomic_store(&clocks[context].is_known, !is_refused);
    if (is_serial) ring_count(COUNT_brackets_serial, 1);
    else atomic_compare_exchange_strong(&due, &never, (int64_t)(ring_now() + ring_ticks(FIRST_NS)));
    if (!atomic_exchange(&is_registered, 1)) atexit(end);
}

static void hold_contexts(uint8_t context, int device) {
    Held held;
    int mode = CAPTURE_MODE_RELAXED, is_mine;
    hold(&held);
    if (lock_take(&lock, &has_lock)) {
        device_driver()->cuThreadExchangeStreamCaptureMode(&mode);
        for (unsigned at = 0; at < device_count(); at++) {
            is_mine = context == NO_CONTEXT ? ring.header->contexts[at].device == device : at == context;
            int is_due = context != NO_CONTEXT || ring_now() > clocks[at].settled;
            if (is_mine && is_due && !is_idle()) enter_burst((uint8_t)at, 0);
        }
        device_driver()->cuThreadExchangeStreamCaptureMode(&mode);
    }
    release(&held);
}

void clock_hold_context(uint8_t context) {
    if (context != NO_CONTEXT) hold_contexts(context, 0);
}

void clock_hold_device(int device) { hold_contexts(NO_CONTEXT, device); }

void clock_release(void) {
    if (has_lock) lock_give(&lock, &has_lock);
}

void clock_forget(uint8_t context) { atomic_store(&clocks[context].is_known, 0); }

void clock_fork(void) {
    const Lock open = LOCK_OPEN;
    lock = open;
    has_lock = 0;
    memset(clocks, 0, sizeof clocks);
    atomic_store(&state, NONE);
    atomic_store(&is_called, 0u);
    atomic_store(&due, INT64_MAX);
    atomic_store(&is_threadless, 0);
}
