/* Runs of eager launches: a head before the first, a tail after the last before a wait or a fetch.
 *
 * A run belongs to a stream, whichever threads launch into it and wait for it. A run that follows stamped work on its
 * stream without any wait in between, of the host or of the stream for an event, gets no head: the host is ahead, and the
 * run starts when that work ends.
 *
 * Launching a stamp costs as much as any launch, so runs are sampled: those with stamps take at most half the budget,
 * a share of the time, and the others are reconstructed (`light_kernels.py`).
 *
 * The other half is for the durations of launches: a part of a run has a stamp after each launch and each copy. There
 * the device would mostly wait for the host, and a stamp would be later than the end it measures. So a gate holds the
 * device back until the part is launched. Three stamps after the gate, with nothing and then an empty kernel between
 * them, give the time between stamps. Because the same launches recur, some parts describe all of them; what was sampled
 * least comes first (`samples.c`).
 *
 * A lock per context is held while stamps are launched, so that no other thread ends the stream meanwhile. It is not
 * global, because a launch may block until the device has space, which may depend on work that another thread gives
 * another device. A profiler in the program may call the driver from within such a launch; such calls are in no run.
 */
#include <pthread.h>

#include "held.h"
#include "hot.h"
#include "interpose.h"
#include "samples.h"
#include "stamps.h"

typedef struct {
    uint64_t key;            /* of the stream */
    _Atomic uint32_t number; /* of the open run; 0: none */
    uint32_t turn;           /* of recording; a pause in between ends the run */
    uint32_t waits;          /* count of waits when stamped work was last enqueued on the stream; 0: never */
    int has_stamps;          /* whether the open run gets stamps at its ends */
    _Atomic uint32_t launches; /* in it, so far */
    _Atomic uint64_t gate;     /* of the part that is being launched; 0: none */
    uint32_t part;             /* number of launches when the part began */
    uint64_t until;            /* deadline for launching the part, before the gate opens itself */
} __attribute__((aligned(64))) Run;

enum { RUNS = 16, PART = 8 /* maximum launches */, LEGACY = 1, OWN = 2 /* CU_STREAM_LEGACY, CU_STREAM_PER_THREAD */ };

typedef struct {
    Lock lock;
    _Atomic uint32_t open; /* number of open runs, with those whose tail is being launched; changed under the lock */
    uint32_t next, used; /* the slot to be given next if all are open, and how many ever had a run */
    Run runs[RUNS];
} Runs;

HOT_DATA static Runs contexts[CONTEXTS] = {[0 ... CONTEXTS - 1] = {.lock = LOCK_OPEN}};
HOT_DATA static _Atomic uint32_t waits = 1; /* number of waits plus one */
HOT_DATA static struct {
    Samples parts, ends; /* of launches that begin a part, and of runs with stamps: what calls use is one cache line */
} samples __attribute__((aligned(64)));

/* The run into which this thread last launched, and whether the thread is launching a stamp. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
    Run *run;
    uint64_t key, kernel; /* of its stream, and the last one launched into it */
    uint32_t number, turn;
    uint8_t context, has_lock;
} last;

/* Lock the runs of a context; fails if this thread is launching a stamp. */
static int lock(Runs *all) { return lock_take(&all->lock, &last.has_lock); }
static void unlock(Runs *all) { lock_give(&all->lock, &last.has_lock); }

void stamps_fork(void) {
    const Runs none = {.lock = LOCK_OPEN};
    last.has_lock = 0;
    samples.ends = samples.parts = (Samples){0};
    samples_fork();
    for (unsigned at = 0; at < CONTEXTS; at++) contexts[at] = none;
}

/* A unique key for each stream of a context: each thread has its own default stream. */
static uint64_t key_of(Stream on) {
    uintptr_t handle = (uintptr_t)on;
    return handle == OWN ? (uint64_t)ring_thread() << 32 | OWN : handle == LEGACY ? 0 : handle;
}

/* The handle by which this thread can use a stream; returns whether it can. */
static int reaches(uint64_t key, Stream *on) {
    int is_own = (key & 3) == OWN;
    *on = (Stream)(uintptr_t)(is_own ? OWN : key);
    return !is_own || key >> 32 == ring_thread();
}

/* No other thread changes it meanwhile. */
static void count_open(Runs *all, uint32_t by) {
    uint32_t open = atomic_load_explicit(&all->open, memory_order_relaxed);
    atomic_store_explicit(&all->open, open + by, memory_order_release);
}

static uint32_t number_of(const Run *run) { return atomic_load_explicit(&run->number, memory_order_relaxed); }

HOT int stamps_runs_now(Stream stream) {
    int status = CAPTURE_NONE;
    const Driver *driver = device_driver();
    return driver->cuStreamIsCapturing && !driver->cuStreamIsCapturing(stream, &status) && status == CAPTURE_NONE;
}

COLD static int launch(KernelNode kernel, Stream stream) {
    Result (*real)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **,
                   void **) = real_call(CALL_cuLaunchKernel);
    if (real && real(kernel.function, 1, 1, 1, 1, 1, 1, 0, stream, kernel.parameters, NULL) == SUCCESS) return 1;
    ring_count(COUNT_stamps_failed, 1);
    return 0;
}

static int put(const Device *device, Stream stream, uint32_t number, unsigned kind) {
    Arguments a;
    return launch(device_stamp(device, (uint64_t)number << 16 | kind, &a), stream);
}

/* Open all gates of a context. */
HOT static void open_gates(uint8_t context) {
    Device *device = &devices[context];
    uint64_t gates = atomic_load_explicit(&device->gates, memory_order_relaxed);
    if (!gates || !device->opened || atomic_load_explicit(device->opened, memory_order_relaxed) >= gates) return;
    atomic_store_explicit(device->opened, gates, memory_order_release); /* the device polls it: not at every wait */
}

/* A part of a run is launched: open its gate. If it is already open, the stamps are late; one stamp too many marks
 * this. */
COLD static void end_part(uint8_t context, Run *run, Stream on) {
    _Atomic uint64_t *opened = devices[context].opened;
    if (!run->gate) return;
    int is_late = atomic_load(&opened[0]) >= run->gate || atomic_load(&opened[1]) >= run->gate;
    open_gates(context);
    run->gate = 0;
    if (is_late) put(&devices[context], on, number_of(run), INSIDE_GRAPH << 1 | TAIL);
}

/* Close an open run, with a tail if `has_tail` and it has stamps. */
HOT static void end_run(uint8_t context, Run *run, int has_tail) {
    Stream on;
    int entered = -1, is_put = 0, writes = run->has_stamps || run->gate;
    if (writes && has_tail && run->turn == ring_turn() && reaches(run->key, &on)) entered = device_enter(context);
    if (entered >= 0) {
        uint64_t since = ring_now();
        int runs = stamps_runs_now(on);
        if (runs) end_part(context, run, on);
        if (runs && run->has_stamps) {
            is_put = put(&devices[context], on, number_of(run), TAIL);
            samples_spend(&samples.ends, since);
        }
        device_leave(entered);
    }
    run->waits = is_put ? atomic_load(&waits) : 0;
    run->gate = 0;
    open_gates(context);
    if (run->has_stamps && !is_put) ring_count(COUNT_runs_left, 1);
    atomic_store_explicit(&run->number, 0, memory_order_release);
    count_open(&contexts[context], -1u);
}

/* End the open runs of a context, or only that of one stream. */
HOT static void end_runs(uint8_t context, const uint64_t *key, int has_tail) {
    Runs *all = &contexts[context];
    if (!atomic_load(&all->open) || !lock(all)) return;
    for (Run *run = all->runs; run < all->runs + all->used; run++)
        if (number_of(run) && (!key || run->key == *key)) end_run(context, run, has_tail);
    unlock(all);
}

/* The same for a stream, whose context may differ from the thread's unless it is a default stream. */
HOT static void end_stream(uint8_t context, Stream on, int has_tail) {
    uint64_t key = key_of(on);
    int is_default = (uintptr_t)on <= OWN;
    for (unsigned at = 0, count = device_count(); at < count; at++)
        if (!is_default || at == context) end_runs((uint8_t)at, &key, has_tail);
}

/* The slot of a stream; if it has none, that of another stream, whose run is closed first if all are open. */
HOT static Run *place_of(uint8_t context, uint64_t key) {
    Runs *all = &contexts[context];
    Run *run = all->runs;
    for (; run < all->runs + all->used; run++)
        if (run->key == key && (number_of(run) || run->waits)) return run;
    for (run = all->runs; run < all->runs + all->used && number_of(run);) run++;
    if (run == all->runs + RUNS) end_run(context, run = &all->runs[all->next++ % RUNS], 1);
    else if (run == all->runs + all->used) all->used++;
    run->key = key;
    run->waits = 0;
    return run;
}

/* What a launch is a sample of: the kernel, behind the same one on the same stream. */
static uint64_t launch_of(uint64_t key, uint64_t before, uint64_t kernel) {
    return (key << 40 | key >> 24) ^ (before << 20 | before >> 44) ^ kernel;
}

HOT static void begin_run(Runs *all, Run *run, const Device *device, Stream on, uint64_t kernel) {
    uint64_t what = ~launch_of(run->key, 0, kernel);
    int is_behind = run->waits == atomic_load(&waits) && run->turn == ring_turn();
    if (!stamps_runs_now(on)) return;
    uint32_t number = (uint32_t)(ring_count(COUNT_runs, 1) % NUMBERS) + 1;
    run->has_stamps = !device_driver()->apart || samples_choose(&samples.ends, ring_ended(), what);
    if (run->has_stamps) ring_count(COUNT_runs_with_stamps, 1), samples_count(what);
    if (run->has_stamps && !is_behind) {
        uint64_t since = ring_now();
        if (!put(device, on, number, HEAD)) return;
        samples_spend(&samples.ends, since);
    }
    run->turn = ring_turn();
    run->waits = 0;
    atomic_store_explicit(&run->launches, 0, memory_order_relaxed);
    count_open(all, 1);
    atomic_store_explicit(&run->number, number, memory_order_release);
}

static int is_open(uint32_t number) {
    return atomic_load_explicit(&last.run->number, memory_order_acquire) == number;
}

/* Whether this thread can launch into the run into which it last launched; if so, locks it. */
static int enter_run(uint8_t context, Stream on) {
    if (!lock(&contexts[context])) return 0;
    if (is_open(last.number) && last.turn == ring_turn() && stamps_runs_now(on)) return 1;
    return unlock(&contexts[context]), 0;
}

static int put_inside(uint8_t context, Stream on) {
    return put(&devices[context], on, last.number, INSIDE_GRAPH << 1 | TAIL);
}

/* The same after a launch or a copy, as part of the budget. */
static int put_behind(uint8_t context, Stream on) {
    uint64_t since = ring_now();
    int is_put = put_inside(context, on);
    samples_spend(&samples.parts, since);
    return is_put;
}

COLD static int begin_part(uint8_t context, Stream on) {
    uint64_t now = ring_now();
    Device *device = &devices[context];
    Run *run = last.run;
    Arguments a;
    if (!enter_run(context, on)) return 0;
    run->gate = atomic_fetch_add(&device->gates, 1u) + 1;
    run->part = atomic_load_explicit(&run->launches, memory_order_relaxed);
    run->until = now + ring_ticks(GATE_NS / 2);
    int is_put = launch(device_gate(device, run->gate, &a), on) && put_inside(context, on) && put_inside(context, on) &&
                 launch(device_nothing(device), on) && put_inside(context, on);
    if (!is_put) open_gates(context), run->gate = 0;
    unlock(&contexts[context]);
    samples_spend(&samples.parts, now);
    return is_put;
}

/* The number to record for a launch into this thread's last run. */
HOT static uint32_t next_of(uint8_t context, Stream on, uint64_t kernel) {
    uint64_t what = launch_of(last.key, last.kernel, kernel);
    int may_begin = device_driver()->apart > 0 && !last.run->gate;
    int begins = may_begin && samples_choose(&samples.parts, ring_ended(), what) && begin_part(context, on);
    uint32_t launches = atomic_load_explicit(&last.run->launches, memory_order_relaxed);
    atomic_store_explicit(&last.run->launches, launches + 1, memory_order_relaxed);
    int is_inside = atomic_load_explicit(&last.run->gate, memory_order_relaxed) != 0;
    if (is_inside) samples_count(what);
    last.kernel = kernel;
    return last.number | (begins ? BEFORE : 0) | (is_inside ? BEHIND : 0);
}

HOT __attribute__((noinline)) static uint32_t new_run(uint8_t context, Stream on, uint64_t key, uint64_t kernel) {
    Device *device = device_driver()->stamps_runs ? device_with_stamps(context) : NULL;
    if (!device) return 0;
    Runs *all = &contexts[context];
    if (!lock(all)) return 0;
    Run *run = place_of(context, key);
    if (number_of(run) && run->turn != ring_turn()) end_run(context, run, 0);
    if (!number_of(run)) begin_run(all, run, device, on, kernel);
    last.run = run, last.key = key, last.kernel = 0, last.context = context;
    last.number = number_of(run), last.turn = run->turn;
    unlock(all);
    return last.number ? next_of(context, on, kernel) : 0;
}

HOT uint32_t stamps_run(uint8_t context, Stream on, const void *function) {
    uint64_t key = key_of(on), kernel = (uintptr_t)function;
    int is_last = last.number && last.key == key && last.context == context && last.turn == ring_turn();
    return is_last && is_open(last.number) ? next_of(context, on, kernel) : new_run(context, on, key, kernel);
}

HOT uint32_t stamps_ran(uint8_t context, Stream on, uint32_t number, Result result) {
    if (!number) return 0;
    if (!is_open(number & NUMBERS)) return ring_count(COUNT_launches_between, 1), 0;
    if (!(number & BEHIND)) return number;
    if (!enter_run(context, on)) return number & ~BEHIND;
    Run *run = last.run;
    uint32_t launches = atomic_load_explicit(&run->launches, memory_order_relaxed);
    if (result != SUCCESS || !put_behind(context, on)) number &= ~BEHIND;
    if (launches - run->part >= PART || ring_now() > run->until) end_part(context, run, on);
    unlock(&contexts[context]);
    return number;
}

HOT uint32_t stamps_beside(uint8_t context, Stream on, Result result) {
    if (!last.number || last.key != key_of(on) || last.context != context || !is_open(last.number)) return 0;
    if (!atomic_load_explicit(&last.run->gate, memory_order_relaxed) || result != SUCCESS) return 0;
    if (!enter_run(context, on)) return 0;
    int is_put = put_behind(context, on);
    unlock(&contexts[context]);
    return is_put ? last.number | BEHIND : 0;
}

HOT void stamps_graph(uint8_t context, Stream on) {
    if (context == NO_CONTEXT || !lock(&contexts[context])) return;
    Run *run = place_of(context, key_of(on));
    if (!number_of(run)) run->turn = ring_turn(), run->waits = atomic_load(&waits);
    unlock(&contexts[context]);
}

HOT void stamps_end(uint8_t context, Stream on) { end_stream(context, on, 1); }
void stamps_leave(uint8_t context, Stream on) { end_stream(context, on, 0); }

HOT void stamps_end_all(uint8_t context) {
    if (context != NO_CONTEXT) end_runs(context, NULL, 1);
}

void stamps_forget(uint8_t context, Stream on) {
    uint64_t key = key_of(on);
    stamps_end(context, on);
    for (unsigned at = 0, count = device_count(); at < count; at++) {
        if (!lock(&contexts[at])) return;
        for (Run *run = contexts[at].runs; run < contexts[at].runs + contexts[at].used; run++)
            if (run->key == key) run->waits = 0;
        unlock(&contexts[at]);
    }
}

/* A wait ends the part that this thread is launching: all of it is launched, and later stamps would be late. */
HOT static void end_own_part(void) {
    Stream on;
    if (!last.number || !is_open(last.number) || !atomic_load(&last.run->gate) || !reaches(last.key, &on)) return;
    int entered = device_enter(last.context);
    if (entered < 0) return;
    if (enter_run(last.context, on)) end_part(last.context, last.run, on), unlock(&contexts[last.context]);
    device_leave(entered);
}

HOT void stamps_wait(void) {
    end_own_part();
    atomic_fetch_add(&waits, 1u);
    for (unsigned at = 0, count = device_count(); at < count; at++) open_gates((uint8_t)at);
}
