#include "stamps.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interpose.h"

/* The kernel that writes the device's clock: `counters[0]` numbers the stamps of a context, the others the launches of
 * each graph; a run of launches (graph 0) brings its number along. %globaltimer is in nanoseconds. One store of 16
 * bytes, so that no reader sees half a stamp. The time is taken last in a head and first in a tail.
 * Source: NVIDIA, "Parallel Thread Execution ISA": special registers, atom, st. */
static const char ptx[] =
    ".version %s\n.target %s\n.address_size 64\n"
    ".visible .global .align 8 .u64 counters[32768];\n"
    ".visible .entry stamp(.param .u64 places, .param .u64 told, .param .u64 mask) {\n"
    "  .reg .u64 %%r<12>;\n  .reg .pred %%p<3>;\n"
    "  mov.u64 %%r0, %%globaltimer;\n"
    "  ld.param.u64 %%r1, [places];\n  ld.param.u64 %%r2, [told];\n  ld.param.u64 %%r3, [mask];\n"
    "  mov.u64 %%r4, counters;\n"
    "  atom.global.add.u64 %%r5, [%%r4], 1;\n"
    "  and.b64 %%r6, %%r2, 1;\n  setp.ne.u64 %%p0, %%r6, 0;\n"
    "  shr.u64 %%r7, %%r2, 1;\n  and.b64 %%r7, %%r7, 32767;\n  setp.eq.u64 %%p1, %%r7, 0;\n"
    "  @%%p1 bra numbered;\n"
    "  shl.b64 %%r7, %%r7, 3;\n  add.u64 %%r7, %%r4, %%r7;\n"
    "  ld.volatile.global.u64 %%r8, [%%r7];\n"
    "  add.u64 %%r9, %%r8, 1;\n  @%%p0 st.volatile.global.u64 [%%r7], %%r9;\n"
    "  and.b64 %%r8, %%r8, 16777215;\n  shl.b64 %%r8, %%r8, 16;\n  or.b64 %%r2, %%r2, %%r8;\n"
    "numbered:\n"
    "  and.b64 %%r10, %%r5, %%r3;\n  shl.b64 %%r10, %%r10, 4;\n  add.u64 %%r10, %%r1, %%r10;\n"
    "  add.u64 %%r5, %%r5, 1;\n  shl.b64 %%r5, %%r5, 40;\n  or.b64 %%r2, %%r2, %%r5;\n"
    "  @%%p0 bra timed;\n"
    "  mov.u64 %%r0, %%globaltimer;\n"
    "timed:\n"
    "  st.volatile.global.v2.u64 [%%r10], {%%r0, %%r2};\n"
    "  ret;\n}\n";
static const char *const targets[][2] = {{"6.0", "sm_50"}, {"6.3", "sm_75"}, {"8.0", "sm_90"}};

/* Of the driver, what only we call; found when the first context is. */
#define DRIVER_CALLS(X)                                                                                               \
    X(cuCtxGetCurrent, (Context *))                                                                                   \
    X(cuCtxGetDevice, (int *))                                                                                        \
    X(cuDeviceGetName, (char *, int, int))                                                                            \
    X(cuThreadExchangeStreamCaptureMode, (int *))                                                                     \
    X(cuStreamIsCapturing, (Stream, int *))                                                                           \
    X(cuModuleLoadData, (Module *, const void *))                                                                     \
    X(cuModuleGetFunction, (Function *, Module, const char *))                                                        \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                               \
    X(cuMemHostGetDevicePointer_v2, (DevicePointer *, void *, unsigned))                                              \
    X(cuGraphGetNodes, (Graph, Node *, size_t *))                                                                     \
    X(cuGraphGetRootNodes, (Graph, Node *, size_t *))                                                                 \
    X(cuGraphNodeGetType, (Node, int *))                                                                              \
    X(cuGraphNodeGetDependentNodes, (Node, Node *, size_t *))                                                         \
    X(cuGraphChildGraphNodeGetGraph, (Node, Graph *))                                                                 \
    X(cuGraphAddKernelNode, (Node *, Graph, const Node *, size_t, const KernelNode *))                                \
    X(cuGraphAddDependencies, (Graph, const Node *, const Node *, size_t))                                            \
    X(cuGraphDestroyNode, (Node))

static struct {
#define X(name, params) Result(*name) params;
    DRIVER_CALLS(X)
#undef X
} driver;

typedef struct {
    Context context;
    Function stamp; /* NULL: no stamps in this context */
    DevicePointer places;
    pthread_once_t loaded;
} Device;

typedef struct {
    Stream stream;
    uint32_t number; /* 0: none */
    uint8_t device;
} Run;

enum { RUNS = 8 };

static Device devices[CONTEXTS];
static _Atomic unsigned device_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static int has_driver, stamps_graphs, stamps_runs;
static _Atomic uint32_t runs_given;
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
    Context context;
    uint8_t device;
    uint8_t next;
    Run runs[RUNS];
} mine;

static void find_driver(void) {
    const char *wish = getenv("INTERTOKEN_LIGHT_STAMPS"); /* all (default), graphs or none */
    stamps_graphs = !wish || strcmp(wish, "none") != 0;
    stamps_runs = !wish || (strcmp(wish, "none") != 0 && strcmp(wish, "graphs") != 0);
#define X(name, params) driver.name = (Result(*) params)interpose_driver(#name);
    DRIVER_CALLS(X)
#undef X
    has_driver = driver.cuCtxGetCurrent && driver.cuCtxGetDevice;
#define X(name, params) stamps_graphs = stamps_graphs && driver.name;
    DRIVER_CALLS(X)
#undef X
    stamps_runs = stamps_runs && stamps_graphs;
}

static uint8_t new_device(Context context) {
    pthread_mutex_lock(&lock);
    unsigned at = 0, count = atomic_load(&device_count);
    while (at < count && devices[at].context != context) at++;
    if (at == count && count < CONTEXTS) {
        ContextFacts *facts = &ring.header->contexts[at];
        devices[at] = (Device){.context = context, .loaded = PTHREAD_ONCE_INIT};
        facts->handle = (uintptr_t)context;
        if (driver.cuCtxGetDevice(&facts->device)) facts->device = -1;
        if (driver.cuDeviceGetName) driver.cuDeviceGetName(facts->name, sizeof facts->name, facts->device);
        ring.header->contexts_used = at + 1;
        atomic_store(&device_count, at + 1);
    } else if (at == count) {
        ring_count(COUNT_contexts_left, 1);
        at = NO_CONTEXT;
    }
    pthread_mutex_unlock(&lock);
    return (uint8_t)at;
}

uint8_t stamps_context(void) {
    Context context = NULL;
    pthread_once(&driver_once, find_driver);
    if (!has_driver || driver.cuCtxGetCurrent(&context) || !context) return NO_CONTEXT;
    if (context != mine.context) mine.device = new_device(context), mine.context = context;
    return mine.device;
}

/* Load the kernel into the current context, and let it reach its part of the ring. */
static void load(uint8_t at) {
    int mode = CAPTURE_MODE_RELAXED; /* captures of other threads forbid such calls else */
    char text[sizeof ptx + 32];
    Module module = NULL;
    Device *device = &devices[at];
    Stamp *places = ring.stamps + (size_t)at * STAMPS;
    Function stamp = NULL;
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    for (size_t i = 0; i < sizeof targets / sizeof *targets && !module; i++) {
        snprintf(text, sizeof text, ptx, targets[i][0], targets[i][1]);
        if (driver.cuModuleLoadData(&module, text)) module = NULL;
    }
    if (module && !driver.cuModuleGetFunction(&stamp, module, "stamp") &&
        !driver.cuMemHostRegister_v2(places, STAMPS * sizeof(Stamp), HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP) &&
        !driver.cuMemHostGetDevicePointer_v2(&device->places, places, 0)) {
        device->stamp = stamp;
        ring.header->contexts[at].has_stamps = 1;
    } else
        ring_count(COUNT_stamps_failed, 1);
    driver.cuThreadExchangeStreamCaptureMode(&mode);
}

/* The current context with its kernel loaded; NULL if it can have none. */
static Device *with_stamps(void) {
    uint8_t at = stamps_context();
    static _Atomic uint8_t state[CONTEXTS]; /* 1: loaded, or tried */
    if (at == NO_CONTEXT) return NULL;
    if (!atomic_load_explicit(&state[at], memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        if (!atomic_load(&state[at])) load(at), atomic_store(&state[at], 1);
        pthread_mutex_unlock(&lock);
    }
    return devices[at].stamp ? &devices[at] : NULL;
}

typedef struct {
    DevicePointer places;
    uint64_t told, mask;
    void *parameters[3];
} Arguments;

static KernelNode arguments_of(Device *device, uint64_t told, Arguments *a) {
    *a = (Arguments){device->places, told, STAMPS - 1, {&a->places, &a->told, &a->mask}};
    return (KernelNode){device->stamp, {1, 1, 1}, {1, 1, 1}, 0, a->parameters, NULL};
}

int stamps_runs_now(Stream stream) {
    int status = CAPTURE_NONE;
    return driver.cuStreamIsCapturing && !driver.cuStreamIsCapturing(stream, &status) && status == CAPTURE_NONE;
}

static int put(Device *device, Stream stream, uint32_t number, int kind) {
    Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **,
                     void **) = real_call(CALL_cuLaunchKernel);
    Arguments a;
    KernelNode k = arguments_of(device, (uint64_t)number << 16 | (unsigned)kind, &a);
    if (launch && launch(k.function, 1, 1, 1, 1, 1, 1, 0, stream, k.parameters, NULL) == SUCCESS) return 1;
    ring_count(COUNT_stamps_failed, 1);
    return 0;
}

static void end_run(Run *run) {
    if (mine.device == run->device && stamps_runs_now(run->stream)) put(&devices[run->device], run->stream, run->number, TAIL);
    run->number = 0;
}

uint32_t stamps_run(Stream stream, int own) {
    Stream on = stamps_stream(stream, own);
    for (Run *run = mine.runs; run < mine.runs + RUNS; run++)
        if (run->number && run->stream == on) return run->number;
    Device *device;
    pthread_once(&driver_once, find_driver);
    if (!stamps_runs || !stamps_runs_now(on) || !(device = with_stamps())) return 0;
    uint32_t number = atomic_fetch_add(&runs_given, 1u) % 0xffffffu + 1;
    if (!put(device, on, number, HEAD)) return 0;
    Run *run = mine.runs;
    while (run < mine.runs + RUNS && run->number) run++;
    if (run == mine.runs + RUNS) end_run(run = &mine.runs[mine.next++ % RUNS]);
    *run = (Run){on, number, mine.device};
    ring_count(COUNT_runs, 1);
    return number;
}

void stamps_end(Stream stream, int own) {
    Stream on = stamps_stream(stream, own);
    for (Run *run = mine.runs; run < mine.runs + RUNS; run++)
        if (run->number && run->stream == on) stamps_context(), end_run(run);
}

void stamps_end_all(void) {
    for (Run *run = mine.runs; run < mine.runs + RUNS; run++)
        if (run->number) stamps_context(), end_run(run);
}

enum { DEEPEST = 8 };

/* Count a reason to leave a graph alone: nodes that forbid that others are removed again, or that we do not know. */
static int can_take(const Node *nodes, size_t count, int depth) {
    for (size_t i = 0; i < count; i++) {
        int type = -1;
        if (driver.cuGraphNodeGetType(nodes[i], &type) || type < 0 || type >= NODE_LAST_KNOWN || depth > DEEPEST)
            return ring_count(COUNT_graphs_left_conditional, 1), 0;
        if (type == NODE_MEM_ALLOC || type == NODE_MEM_FREE) return ring_count(COUNT_graphs_left_memory, 1), 0;
        if (type != NODE_GRAPH) continue;
        Graph child = NULL;
        size_t inner = 0;
        if (driver.cuGraphChildGraphNodeGetGraph(nodes[i], &child) || driver.cuGraphGetNodes(child, NULL, &inner))
            return ring_count(COUNT_graphs_left_refused, 1), 0;
        Node *found = malloc((inner + 1) * sizeof *found);
        int takes = found && !driver.cuGraphGetNodes(child, found, &inner) && can_take(found, inner, depth + 1);
        free(found);
        if (!takes) return 0;
    }
    return 1;
}

static int add(Device *device, Graph graph, uint16_t id, Node *nodes, size_t count, Node pair[2]) {
    Arguments a;
    size_t roots = count, leaves = 0;
    KernelNode head = arguments_of(device, (uint64_t)id << 1 | HEAD, &a);
    if (driver.cuGraphAddKernelNode(&pair[HEAD], graph, NULL, 0, &head)) return pair[HEAD] = NULL, 0;
    Node *others = nodes + count + 1, *heads = others + count + 1;
    roots = count + 1;
    if (driver.cuGraphGetRootNodes(graph, others, &roots)) return 0;
    size_t kept = 0;
    for (size_t i = 0; i < roots; i++)
        if (others[i] != pair[HEAD]) others[kept++] = others[i];
    for (size_t i = 0; i < kept; i++) heads[i] = pair[HEAD];
    if (driver.cuGraphAddDependencies(graph, heads, others, kept)) return 0;
    for (size_t i = 0; i < count; i++) {
        size_t dependents = 0;
        if (driver.cuGraphNodeGetDependentNodes(nodes[i], NULL, &dependents)) return 0;
        if (!dependents) others[leaves++] = nodes[i];
    }
    KernelNode tail = arguments_of(device, (uint64_t)id << 1 | TAIL, &a);
    if (driver.cuGraphAddKernelNode(&pair[TAIL], graph, others, leaves, &tail)) return pair[TAIL] = NULL, 0;
    return 1;
}

int stamps_add(Graph graph, uint16_t id, Node pair[2]) {
    size_t count = 0;
    pair[HEAD] = pair[TAIL] = NULL;
    pthread_once(&driver_once, find_driver);
    Device *device = stamps_graphs ? with_stamps() : NULL;
    if (!device) return 0;
    if (driver.cuGraphGetNodes(graph, NULL, &count) || !count) return ring_count(COUNT_graphs_left_empty, 1), 0;
    Node *nodes = malloc(3 * (count + 1) * sizeof *nodes);
    int done = nodes && !driver.cuGraphGetNodes(graph, nodes, &count) && can_take(nodes, count, 0);
    if (done && !(done = add(device, graph, id, nodes, count, pair))) {
        stamps_remove(pair);
        ring_count(COUNT_graphs_left_refused, 1);
    }
    free(nodes);
    return done;
}

void stamps_remove(Node pair[2]) {
    for (int i = 0; i < 2; i++)
        if (pair[i]) driver.cuGraphDestroyNode(pair[i]), pair[i] = NULL;
}
