#include "device.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "held.h"
#include "hot.h"
#include "interpose.h"
#include "stamps.h"

/* The kernel that writes the device's clock. `counters[0]` numbers the stamps of a context, the others the launches of
 * each graph; runs of launches (graphs 0 and 32766) pass their number. %globaltimer is in nanoseconds. A single 16-byte
 * store, so that no reader sees half a stamp. The time is that of the kernel's start, which is when the first node
 * would have started; but heads in a chain of stamps (graph 32767) write the time of their end.
 * Source: NVIDIA, "Parallel Thread Execution ISA": special registers, atom, st. */
static const char ptx[] =
    ".version %s\n.target %s\n.address_size 64\n"
    ".visible .global .align 8 .u64 counters[32768];\n"
    ".visible .entry stamp(.param .u64 places, .param .u64 told, .param .u64 mask) {\n"
    "  .reg .u64 %%r<12>;\n  .reg .pred %%p<5>;\n"
    "  mov.u64 %%r0, %%globaltimer;\n"
    "  ld.param.u64 %%r1, [places];\n  ld.param.u64 %%r2, [told];\n  ld.param.u64 %%r3, [mask];\n"
    "  mov.u64 %%r4, counters;\n"
    "  atom.global.add.u64 %%r5, [%%r4], 1;\n"
    "  and.b64 %%r6, %%r2, 1;\n  setp.ne.u64 %%p0, %%r6, 0;\n"
    "  shr.u64 %%r7, %%r2, 1;\n  and.b64 %%r7, %%r7, 32767;\n  setp.eq.u64 %%p1, %%r7, 0;\n"
    "  setp.eq.u64 %%p3, %%r7, 32766;\n  or.pred %%p1, %%p1, %%p3;\n"
    "  setp.ne.u64 %%p2, %%r7, 32767;\n  or.pred %%p2, %%p2, %%p0;\n"
    "  @%%p1 bra numbered;\n"
    "  shl.b64 %%r7, %%r7, 3;\n  add.u64 %%r7, %%r4, %%r7;\n"
    "  ld.volatile.global.u64 %%r8, [%%r7];\n"
    "  add.u64 %%r9, %%r8, 1;\n  @%%p0 st.volatile.global.u64 [%%r7], %%r9;\n"
    "  and.b64 %%r8, %%r8, 16777215;\n  shl.b64 %%r8, %%r8, 16;\n  or.b64 %%r2, %%r2, %%r8;\n"
    "numbered:\n"
    "  and.b64 %%r10, %%r5, %%r3;\n  shl.b64 %%r10, %%r10, 4;\n  add.u64 %%r10, %%r1, %%r10;\n"
    "  add.u64 %%r5, %%r5, 1;\n  shl.b64 %%r5, %%r5, 40;\n  or.b64 %%r2, %%r2, %%r5;\n"
    "  @%%p2 bra timed;\n"
    "  mov.u64 %%r0, %%globaltimer;\n"
    "timed:\n"
    "  st.volatile.global.v2.u64 [%%r10], {%%r0, %%r2};\n"
    "  ret;\n}\n"
    ".visible .entry gate(.param .u64 opened, .param .u64 ticket, .param .u64 most) {\n"
    "  .reg .u64 %%r<6>;\n  .reg .pred %%p<2>;\n"
    "  mov.u64 %%r0, %%globaltimer;\n"
    "  ld.param.u64 %%r1, [opened];\n  ld.param.u64 %%r2, [ticket];\n  ld.param.u64 %%r3, [most];\n"
    "again:\n"
    "  ld.volatile.global.u64 %%r4, [%%r1];\n  setp.ge.u64 %%p0, %%r4, %%r2;\n  @%%p0 bra passes;\n"
    "  mov.u64 %%r5, %%globaltimer;\n  sub.u64 %%r5, %%r5, %%r0;\n  setp.lt.u64 %%p1, %%r5, %%r3;\n"
    "  @%%p1 bra again;\n"
    "  st.volatile.global.u64 [%%r1+8], %%r2;\n"
    "passes:\n  ret;\n}\n"
    ".visible .entry answers(.param .u64 board, .param .u64 first, .param .u64 final) {\n"
    "  .reg .u64 %%r<7>;\n  .reg .pred %%p<3>;\n"
    "  ld.param.u64 %%r0, [board];\n  ld.param.u64 %%r1, [first];\n  ld.param.u64 %%r2, [final];\n"
    "  mov.u64 %%r3, %%globaltimer;\n"
    "answer:\n"
    "  mov.u64 %%r4, %%globaltimer;\n"
    "  st.volatile.global.v2.u64 [%%r0+128], {%%r4, %%r1};\n"
    "  setp.ge.u64 %%p0, %%r1, %%r2;\n  @%%p0 bra over;\n"
    "  add.u64 %%r1, %%r1, 1;\n"
    "listen:\n"
    "  ld.volatile.global.u64 %%r5, [%%r0];\n  setp.ge.u64 %%p1, %%r5, %%r1;\n  @%%p1 bra answer;\n"
    "  mov.u64 %%r6, %%globaltimer;\n  sub.u64 %%r6, %%r6, %%r3;\n  setp.lt.u64 %%p2, %%r6, %u;\n"
    "  @%%p2 bra listen;\n"
    "over:\n"
    "  st.volatile.global.u64 [%%r0+256], %%r2;\n"
    "  ret;\n}\n"
    ".visible .entry nothing() {\n  ret;\n}\n";
static const char *const targets[][2] = {{"6.0", "sm_50"}, {"6.3", "sm_75"}, {"8.0", "sm_90"}};

#define GONE ((Context)-1)

/* The share of the time, in percent, that launching stamps in and around runs may take: 0 gives each run stamps at its
 * ends, whatever that costs, and none inside. */
#define BUDGET 0.2

HOT_DATA static Driver driver = {.generation = 1};

HOT_DATA Device devices[CONTEXTS];
Aside asides[CONTEXTS];
static _Atomic uint8_t tried[CONTEXTS]; /* whether loading the kernel was tried */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* With the thread's variables in ring.c and runs.c this is one cache line. */
static _Thread_local __attribute__((tls_model("initial-exec"), aligned(64))) struct {
    Context context;
    unsigned generation;
    uint8_t device;
} mine;

static int wants_graphs = 1, wants_runs = 1;
static uint64_t apart = 2 * 100 / BUDGET; /* half of it for the ends of runs, half for parts */

/* Of a decimal, in thousandths: floating point would leave a mark in the program's exceptions. */
static uint64_t apart_of(const char *budget) {
    char *rest;
    uint64_t thousandths = strtoull(budget, &rest, 10) * 1000, digit = 100;
    if (*rest == '.')
        for (rest++; *rest >= '0' && *rest <= '9'; rest++, digit /= 10) thousandths += (uint64_t)(*rest - '0') * digit;
    uint64_t launches = thousandths ? 2 * 100 * 1000 / thousandths : 0;
    return thousandths && !launches ? 1 : launches;
}

void device_start(void) {
    const char *wish = getenv("INTERTOKEN_LIGHT_STAMPS"); /* all (default), graphs or none */
    const char *budget = getenv("INTERTOKEN_LIGHT_BUDGET");
    wants_graphs = !wish || strcmp(wish, "none") != 0;
    wants_runs = wants_graphs && (!wish || strcmp(wish, "graphs") != 0);
    if (budget) apart = apart_of(budget);
    clock_find();
}

/* Two threads may do so at the same time; neither waits for the other while it looks up, because that takes the linker's
 * lock. */
COLD void device_find(void) {
    static _Atomic int is_publishing; /* a thread that does so is waited for, unless a fork left it behind */
#define X(name, params) Result(*name) params = (Result(*) params)interpose_driver(#name);
    DRIVER_CALLS(X) NEWER_DRIVER_CALLS(X)
#undef X
    int graphs = wants_graphs && cuCtxGetDevice;
#define X(name, params) graphs = graphs && name;
    DRIVER_CALLS(X)
#undef X
    int waits = atomic_load(&driver.is_found) || atomic_exchange(&is_publishing, 1);
    for (int tries = 0; waits && !atomic_load(&driver.is_found) && tries < 1000; tries++) sched_yield();
    if (!atomic_load(&driver.is_found)) {
#define X(name, params) driver.name = name;
        DRIVER_CALLS(X) NEWER_DRIVER_CALLS(X)
#undef X
        if (!driver.cuCtxGetDevice) driver.cuCtxGetCurrent = NULL;
        driver.stamps_graphs = graphs;
        driver.stamps_runs = graphs && wants_runs;
        driver.apart = apart;
        atomic_store_explicit(&driver.is_found, 1, memory_order_release);
    }
}

HOT const Driver *device_driver(void) {
    if (!atomic_load_explicit(&driver.is_found, memory_order_acquire)) device_find();
    return &driver;
}

void device_fork(void) {
    pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    lock = open;
    for (unsigned at = 0; at < CONTEXTS; at++) devices[at] = (Device){0}, tried[at] = 0;
    atomic_store(&driver.contexts, 0u);
    atomic_fetch_add(&driver.generation, 1u);
}

COLD static uint8_t new_device(Context context) {
    Held held;
    hold(&held);
    pthread_mutex_lock(&lock);
    unsigned at = 0, count = atomic_load(&driver.contexts);
    while (at < count && devices[at].context != context) at++;
    if (at == count && count < CONTEXTS) {
        ContextFacts *facts = &ring.header->contexts[at];
        devices[at] = (Device){.context = context};
        facts->handle = (uintptr_t)context;
        if (driver.cuCtxGetDevice(&facts->device)) facts->device = -1;
        if (driver.cuDeviceGetUuid_v2 && driver.cuDeviceGetUuid_v2(facts->uuid, facts->device))
            memset(facts->uuid, 0, sizeof facts->uuid);
        if (driver.cuDeviceGetName) driver.cuDeviceGetName(facts->name, sizeof facts->name, facts->device);
        atomic_store_explicit(&ring.header->contexts_used, at + 1, memory_order_release);
        atomic_store(&driver.contexts, at + 1);
    } else if (at == count) {
        ring_count(COUNT_contexts_left, 1);
        at = NO_CONTEXT;
    }
    pthread_mutex_unlock(&lock);
    release(&held);
    return (uint8_t)at;
}

HOT uint8_t device_context(void) {
    Context context = NULL;
    device_driver();
    if (!driver.cuCtxGetCurrent || driver.cuCtxGetCurrent(&context) || !context) return NO_CONTEXT;
    unsigned now = atomic_load_explicit(&driver.generation, memory_order_relaxed);
    if (context != mine.context || now != mine.generation) {
        mine.device = new_device(context);
        mine.context = context;
        mine.generation = now;
    }
    return mine.device;
}

HOT unsigned device_count(void) { return atomic_load_explicit(&driver.contexts, memory_order_acquire); }

uint8_t device_of(Context context) {
    Held held;
    if (!context) return device_context();
    hold(&held);
    pthread_mutex_lock(&lock);
    unsigned at = 0, count = device_count();
    while (at < count && devices[at].context != context) at++;
    pthread_mutex_unlock(&lock);
    release(&held);
    return at < count ? (uint8_t)at : NO_CONTEXT;
}

int device_enter(uint8_t context) {
    if (context == NO_CONTEXT || !devices[context].stamp) return -1;
    if (device_context() == context) return 0;
    return driver.cuCtxPushCurrent_v2(devices[context].context) ? -1 : 1;
}

void device_leave(int entered) {
    Context before;
    if (entered == 1) driver.cuCtxPopCurrent_v2(&before);
}

static void forget(unsigned at) {
    clock_forget((uint8_t)at);
    devices[at].context = GONE;
    devices[at].stamp = NULL;
    atomic_fetch_add(&driver.generation, 1u);
}

void device_forget(Context context) {
    Held held;
    hold(&held);
    pthread_mutex_lock(&lock);
    for (unsigned at = 0; at < device_count(); at++)
        if (devices[at].context == context) forget(at);
    pthread_mutex_unlock(&lock);
    release(&held);
}

void device_forget_primary(int device) {
    unsigned flags;
    int active = 1;
    device_driver();
    if (!driver.cuDevicePrimaryCtxGetState) return;
    if (driver.cuDevicePrimaryCtxGetState(device, &flags, &active) || active) return;
    Held held;
    hold(&held);
    pthread_mutex_lock(&lock);
    for (unsigned at = 0; ring.header && at < device_count(); at++)
        if (ring.header->contexts[at].device == device) forget(at);
    pthread_mutex_unlock(&lock);
    release(&held);
}

/* Measure how long a stamp and the step to the next node take: a chain of alternating heads and tails, run twice. */
static void run_chain(const Device *device, Stream stream) {
    enum { CHAIN = 32 };
    Result (*instantiate)(Exec *, Graph, unsigned long long) = real_call(CALL_cuGraphInstantiateWithFlags);
    Result (*launch)(Exec, Stream) = real_call(CALL_cuGraphLaunch);
    Result (*wait)(Stream) = real_call(CALL_cuStreamSynchronize);
    Result (*destroy)(Exec) = real_call(CALL_cuGraphExecDestroy);
    Graph graph = NULL;
    Exec exec = NULL;
    Node last = NULL;
    int whole = instantiate && launch && wait && destroy && !driver.cuGraphCreate(&graph, 0);
    for (unsigned i = 0; whole && i < CHAIN; i++) {
        Arguments a;
        KernelNode stamp = device_stamp(device, (uint64_t)CHAIN_GRAPH << 1 | i % 2, &a);
        a.places = device->chain, a.mask = CHAIN_STAMPS - 1;
        Node before = last;
        whole = !driver.cuGraphAddKernelNode(&last, graph, &before, before ? 1 : 0, &stamp);
    }
    if (whole && !instantiate(&exec, graph, 0) && !launch(exec, stream) && !launch(exec, stream)) wait(stream);
    if (exec) destroy(exec);
    if (graph) driver.cuGraphDestroy(graph);
}

/* Load the kernel into the current context, and map its part of the ring for it. */
static int load(uint8_t at) {
    static char text[sizeof ptx + 32]; /* under the lock; not on a stack that may be small */
    Module module = NULL;
    Function stamp = NULL;
    Device *device = &devices[at];
    Aside *aside = &asides[at];
    enum { STREAM_NON_BLOCKING = 1 };
    const unsigned flags = HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP;
    for (size_t i = 0; i < sizeof targets / sizeof *targets && !module; i++) {
        snprintf(text, sizeof text, ptx, targets[i][0], targets[i][1], (unsigned)ANSWERS_NS);
        if (driver.cuModuleLoadData(&module, text)) module = NULL;
    }
    if (!module || driver.cuModuleGetFunction(&stamp, module, "stamp")) return 0;
    if (driver.cuModuleGetFunction(&device->gate, module, "gate")) return 0;
    if (driver.cuModuleGetFunction(&device->nothing, module, "nothing")) return 0;
    if (driver.cuModuleGetFunction(&aside->answers, module, "answers")) return 0;
    if (driver.cuStreamCreate(&aside->stream, STREAM_NON_BLOCKING)) return 0;
    Place *place = ring_take_place(at);
    if (!place || driver.cuMemHostRegister_v2(place, sizeof *place, flags)) return 0;
    if (driver.cuMemHostGetDevicePointer_v2(&device->places, place, 0)) return 0;
    aside->place = place;
    device->chain = device->places + offsetof(Place, chain);
    device->opened = (_Atomic uint64_t *)&place->chain[CHAIN_STAMPS - 1]; /* the chain is shorter */
    device->stamp = stamp;
    run_chain(device, aside->stream);
    ring.header->contexts[at].has_stamps = 1;
    clock_start(at);
    return 1;
}

Device *device_with_stamps(uint8_t at) {
    if (at == NO_CONTEXT) return NULL;
    if (!atomic_load_explicit(&tried[at], memory_order_acquire)) {
        int mode = CAPTURE_MODE_RELAXED; /* otherwise captures of other threads forbid such calls */
        Held held;
        hold(&held);
        pthread_mutex_lock(&lock);
        if (!atomic_load(&tried[at])) {
            driver.cuThreadExchangeStreamCaptureMode(&mode);
            if (!load(at)) ring_count(COUNT_stamps_failed, 1);
            driver.cuThreadExchangeStreamCaptureMode(&mode);
            atomic_store(&tried[at], 1);
        }
        pthread_mutex_unlock(&lock);
        release(&held);
    }
    return devices[at].stamp ? &devices[at] : NULL;
}

KernelNode device_stamp(const Device *device, uint64_t told, Arguments *a) {
    *a = (Arguments){device->places, told, STAMPS - 1, {&a->places, &a->told, &a->mask}};
    return (KernelNode){device->stamp, {1, 1, 1}, {1, 1, 1}, 0, a->parameters, NULL};
}

KernelNode device_gate(const Device *device, uint64_t gate, Arguments *a) {
    DevicePointer opened = device->chain + (CHAIN_STAMPS - 1) * sizeof(Stamp);
    *a = (Arguments){opened, gate, GATE_NS, {&a->places, &a->told, &a->mask}};
    return (KernelNode){device->gate, {1, 1, 1}, {1, 1, 1}, 0, a->parameters, NULL};
}

KernelNode device_answers(uint8_t context, uint64_t first, uint64_t last, Arguments *a) {
    *a = (Arguments){devices[context].places + offsetof(Place, board), first, last, {&a->places, &a->told, &a->mask}};
    return (KernelNode){asides[context].answers, {1, 1, 1}, {1, 1, 1}, 0, a->parameters, NULL};
}

KernelNode device_nothing(const Device *device) {
    return (KernelNode){device->nothing, {1, 1, 1}, {1, 1, 1}, 0, NULL, NULL};
}
