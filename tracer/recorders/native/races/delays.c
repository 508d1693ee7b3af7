/* Delays. On the device without a kernel: the stream says that it has come there, and waits for a value, which a thread
 * of ours writes so many microseconds later. Where the driver refuses that, the host waits before the call instead. */
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>

#include "../held.h"
#include "races.h"

enum { GATES = 1 << 10, PAUSE_NS = 2000, WAIT_GEQ = 0 };

/* A pair of words that the device sees. */
typedef struct {
    _Atomic uint64_t arrived, opened;
} Gate;

static struct {
    uint64_t ticket; /* which use of the gate */
    int64_t ns, since;
    _Bool is_used;
} uses[GATES];
static unsigned used, next_gate;
static _Bool has_thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t some = PTHREAD_COND_INITIALIZER;
static _Atomic uint64_t ordinals[KIND_OTHER], in_step[KIND_OTHER];

void delays_fork(void) {
    pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t none = PTHREAD_COND_INITIALIZER;
    lock = open, some = none;
    memset(uses, 0, sizeof uses);
    memset((void *)ordinals, 0, sizeof ordinals), memset((void *)in_step, 0, sizeof in_step);
    used = 0, has_thread = 0;
}

void delays_step(void) {
    for (int kind = 0; kind < KIND_OTHER; kind++) atomic_store(&in_step[kind], 0);
}

/* The same answer for the same seed, kind and number of the call. */
static int drawn(enum Kind kind, uint64_t number) {
    uint64_t x = settings.seed * UINT64_C(0x9e3779b97f4a7c15) + number * 8 + kind;
    x ^= x >> 30, x *= UINT64_C(0xbf58476d1ce4e5b9), x ^= x >> 27, x *= UINT64_C(0x94d049bb133111eb), x ^= x >> 31;
    return x % 1000 < settings.per_mille;
}

int delay_wanted(enum Kind kind, const Row *row) {
    if (kind >= KIND_OTHER || !settings.delay_us || !(settings.kinds >> kind & 1)) return 0;
    uint64_t number = atomic_fetch_add(&ordinals[kind], 1), here = atomic_fetch_add(&in_step[kind], 1) + 1;
    if (settings.site && (!row || row->key != settings.site)) return 0;
    if (settings.ordinal && settings.ordinal != here) return 0;
    return drawn(kind, number);
}

static void open_gates(Gate *gates) {
    int64_t now = now_ns();
    for (unsigned at = 0; at < GATES; at++) {
        if (!uses[at].is_used) continue;
        if (!uses[at].since && atomic_load_explicit(&gates[at].arrived, memory_order_acquire) == uses[at].ticket)
            uses[at].since = now;
        if (!uses[at].since || now - uses[at].since < uses[at].ns) continue;
        atomic_store_explicit(&gates[at].opened, uses[at].ticket, memory_order_release);
        uses[at].is_used = 0, used--;
    }
}

static void *watch(void *gates) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    prctl(PR_SET_TIMERSLACK, 1UL);
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!used) pthread_cond_wait(&some, &lock);
        open_gates(gates);
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static int start_thread(Gate *gates) {
    pthread_t thread;
    Held held;
    if (has_thread) return 1;
    hold(&held); /* the thread takes no signals of the program's */
    has_thread = pthread_create(&thread, NULL, watch, gates) == 0;
    if (has_thread) pthread_detach(thread);
    release(&held);
    return has_thread;
}

static int take_gate(Gate *gates, int64_t ns) {
    int at = -1;
    pthread_mutex_lock(&lock);
    if (start_thread(gates) && used < GATES) {
        while (uses[next_gate].is_used) next_gate = (next_gate + 1) % GATES;
        at = (int)next_gate, next_gate = (next_gate + 1) % GATES;
        uses[at].ticket++, uses[at].ns = ns, uses[at].since = 0, uses[at].is_used = 1;
        used++;
        pthread_cond_signal(&some);
    }
    pthread_mutex_unlock(&lock);
    return at;
}

static void give_gate(unsigned at) {
    pthread_mutex_lock(&lock);
    uses[at].is_used = 0, used--;
    pthread_mutex_unlock(&lock);
}

/* Hold the stream back for that long from when it comes there. A gate that was refused opens all the same. */
static int hold_stream(Stream stream, uint64_t us) {
    typedef Result (*Value)(Stream, DevicePointer, uint64_t, unsigned);
    Value write_value = (Value)real_call(CALL_cuStreamWriteValue64_v2);
    Value wait_value = (Value)real_call(CALL_cuStreamWaitValue64_v2);
    DevicePointer seen;
    Gate *gates = pinned_gates(&seen);
    int at = gates && write_value && wait_value ? take_gate(gates, (int64_t)us * 1000) : -1;
    if (at < 0) return 0;
    uint64_t ticket = uses[at].ticket;
    seen += (unsigned)at * sizeof(Gate);
    if (write_value(stream, seen, ticket, 0) != SUCCESS) return give_gate((unsigned)at), 0;
    return wait_value(stream, seen + sizeof(uint64_t), ticket, WAIT_GEQ) == SUCCESS;
}

void delay(enum Kind kind, StreamState *stream, Row *row) {
    if (!delay_wanted(kind, row)) return;
    int on_host = kind == KIND_SYNC || kind == KIND_HOST || !stream;
    if (!on_host && !hold_stream((Stream)(uintptr_t)stream->handle, settings.delay_us))
        log_count(LOGGED_delays_refused, 1), on_host = 1;
    if (on_host) races_host_wait(settings.delay_us);
    log_count(on_host ? LOGGED_delays_on_host : LOGGED_delays, 1);
    if (row) row_count(&row->delayed);
}

/* So that a drained stream is as busy at the next copy as a stream that is not: what the program put there before the
 * copy has not run when the copy is enqueued. */
void delays_hold(StreamState *stream) {
    if (!settings.drain_ms || !settings.hold_us || !stream || stream->is_held) return;
    stream->is_held = 1;
    if (hold_stream((Stream)(uintptr_t)stream->handle, settings.hold_us)) log_count(LOGGED_holds, 1);
}
