/* Graphs: stamped at instantiation, identified at launch. */
#include <string.h>

#include "device.h"
#include "held.h"
#include "hot.h"
#include "interpose.h"
#include "stamps.h"

enum { SLOTS = 2 * MOST_GRAPHS };

typedef struct {
    Exec exec; /* NULL: free */
    uint16_t id;
    uint8_t is_captured; /* into another graph, which also runs its stamps */
} Stamped;

/* The id of a graph in its stamps. A reused id continues counting launches, as the device does. */
typedef struct {
    uint32_t launches;
    uint8_t is_taken, context;
} Id;

/* Executable graph -> its stamps; open addressing, so an empty slot ends a search. */
static Stamped table[SLOTS];
static Id ids[MOST_GRAPHS];
static uint16_t last_id; /* assigned; the one that has been free for longest is next */
static Lock lock = LOCK_OPEN;
static _Thread_local __attribute__((tls_model("initial-exec"))) uint8_t has_lock;
static _Atomic int is_uncounted; /* a launch was not counted as the device does: no launch has a number any more */

static int enter(void) { return lock_take(&lock, &has_lock) || !(is_uncounted = 1); }
static void leave(void) { lock_give(&lock, &has_lock); }

void graphs_fork(void) {
    const Lock open = LOCK_OPEN;
    lock = open;
    has_lock = is_uncounted = 0;
    if (last_id) memset(table, 0, sizeof table), memset(ids, 0, sizeof ids);
    last_id = 0;
}

static size_t home_of(Exec exec) { return (size_t)(((uintptr_t)exec >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 48); }

static size_t place_of(Exec exec) {
    size_t at = home_of(exec) % SLOTS;
    while (table[at].exec && table[at].exec != exec) at = (at + 1) % SLOTS;
    return at;
}

/* The id of a stamped graph, 0 if it is not stamped; and the context in which its stamps run. */
static uint16_t id_of(Exec exec, uint8_t *context) {
    *context = NO_CONTEXT;
    if (!enter()) return 0;
    Stamped *entry = &table[place_of(exec)];
    uint16_t id = entry->exec ? entry->id : 0;
    *context = ids[id].context;
    leave();
    return id;
}

/* Before a launch: its number, as the device counts. Returns the id, 0 if there is none or the device also counts other
 * launches. A program launches a graph from one thread at a time (CUDA driver API, graph object thread safety). */
static uint16_t count_launch(Exec exec, uint32_t *number) {
    if (!enter()) return 0;
    Stamped *entry = &table[place_of(exec)];
    uint16_t id = entry->exec && !entry->is_captured ? entry->id : 0;
    if (id) *number = ids[id].launches++;
    if (is_uncounted) id = 0;
    leave();
    return id;
}

/* The launch failed. */
static void uncount_launch(uint16_t id) {
    if (!enter()) return;
    ids[id].launches--;
    leave();
}

/* The graph was launched into a capture. */
static void was_captured(Exec exec) {
    if (!enter()) return;
    Stamped *entry = &table[place_of(exec)];
    int is_first = entry->exec && !entry->is_captured;
    if (is_first) entry->is_captured = 1;
    leave();
    if (is_first) ring_count(COUNT_graphs_left_captured, 1);
}

static void forget(Exec exec) {
    if (!enter()) return;
    size_t hole = place_of(exec);
    if (table[hole].exec) {
        ids[table[hole].id].is_taken = table[hole].is_captured; /* a graph with its stamps may run later */
        for (size_t at = (hole + 1) % SLOTS; table[at].exec; at = (at + 1) % SLOTS) {
            size_t home = home_of(table[at].exec) % SLOTS;
            if ((at - home) % SLOTS >= (at - hole) % SLOTS) table[hole] = table[at], hole = at;
        }
        table[hole].exec = NULL;
    }
    leave();
}

static void remember(Exec exec, uint16_t id) {
    forget(exec); /* an earlier graph with this handle, destroyed with its context */
    if (!enter()) return;
    table[place_of(exec)] = (Stamped){exec, id, 0};
    leave();
}

/* An id that is free and was not used in another context, where the device counts separately. */
static uint16_t take_id(uint8_t context) {
    uint16_t id = 0;
    if (!enter()) return 0;
    for (int tries = 0; tries < INSIDE_GRAPH - 1 && !id; tries++) {
        Id *next = &ids[last_id = last_id % (INSIDE_GRAPH - 1) + 1];
        if (next->is_taken || (next->launches && next->context != context)) continue;
        next->is_taken = 1, next->context = context;
        id = last_id;
    }
    leave();
    if (!id) ring_count(COUNT_graphs_left_many, 1);
    return id;
}

static void give_back(uint16_t id) {
    if (!enter()) return;
    ids[id].is_taken = 0;
    leave();
}

/* Add stamps to a graph before instantiation; returns their id, 0 without stamps. */
static uint16_t stamp_new(Graph graph, unsigned long long flags, Node pair[2]) {
    if (!device_driver()->stamps_graphs) return 0;
    if (flags & INSTANTIATE_DEVICE_LAUNCH) return ring_count(COUNT_graphs_left_device, 1), 0;
    uint8_t context = device_context();
    Device *device = device_with_stamps(context);
    if (!device) return ring_count(COUNT_graphs_left_context, 1), 0;
    uint16_t id = take_id(context);
    if (!id || stamps_add(device, graph, id, pair)) return id;
    return give_back(id), 0;
}

/* Add stamps, with the same kernel, to a graph from which a stamped executable is updated. */
static uint16_t stamp_again(Exec exec, Graph graph, Node pair[2]) {
    uint8_t context;
    uint16_t id = id_of(exec, &context);
    int entered = id ? device_enter(context) : -1;
    if (entered < 0) return id;
    stamps_add(&devices[context], graph, id, pair);
    device_leave(entered);
    return id;
}

static void write_call(enum Call call, uint64_t begin, uint64_t end, Result result, Exec exec, uint16_t id) {
    Record record = {.begin = begin, .end = end, .call = (uint16_t)call, .result = (uint16_t)result,
                     .object = (uintptr_t)exec, .graph = id, .context = device_context()};
    if (recording()) ring_write(&record);
}

/* `result = call` with stamps in the graph; repeated without them if it fails. */
#define INSTANTIATE(which, exec, graph, flags, call)                                                                  \
    if (!real) return ERROR_NOT_SUPPORTED;                                                                            \
    if (!ring_there()) return call;                                                                                   \
    Node pair[2] = {NULL, NULL};                                                                                      \
    int64_t entered = ring_monotonic();                                                                               \
    uint16_t id = stamp_new(graph, flags, pair);                                                                      \
    uint64_t begin = ring_now();                                                                                      \
    int64_t called = ring_monotonic();                                                                                \
    Result result = call;                                                                                             \
    int64_t took = ring_monotonic() - called;                                                                         \
    uint64_t end = ring_now();                                                                                        \
    stamps_remove(pair);                                                                                              \
    if (result != SUCCESS && id) {                                                                                    \
        ring_count(COUNT_graphs_left_refused, 1);                                                                     \
        give_back(id);                                                                                                \
        id = 0, begin = ring_now(), result = call, end = ring_now();                                                  \
    }                                                                                                                 \
    if (result == SUCCESS && id) remember(*(exec), id), ring_count(COUNT_graphs_stamped, 1);                          \
    if (result == SUCCESS && !id) forget(*(exec));                                                                    \
    write_call(CALL_##which, begin, end, result, result == SUCCESS ? *(exec) : NULL, id);                             \
    ring_count(COUNT_stamping_ns, (uint64_t)(ring_monotonic() - entered - took));                                     \
    return result;

#define REAL(which, params) Result(*real) params = (Result(*) params)real_call(CALL_##which)

Result cuGraphInstantiate(Exec *x, Graph g, Node *n, char *log, size_t size) {
    REAL(cuGraphInstantiate, (Exec *, Graph, Node *, char *, size_t));
    INSTANTIATE(cuGraphInstantiate, x, g, 0, real(x, g, n, log, size))
}

Result cuGraphInstantiate_v2(Exec *x, Graph g, Node *n, char *log, size_t size) {
    REAL(cuGraphInstantiate_v2, (Exec *, Graph, Node *, char *, size_t));
    INSTANTIATE(cuGraphInstantiate_v2, x, g, 0, real(x, g, n, log, size))
}

Result cuGraphInstantiateWithFlags(Exec *x, Graph g, unsigned long long flags) {
    REAL(cuGraphInstantiateWithFlags, (Exec *, Graph, unsigned long long));
    INSTANTIATE(cuGraphInstantiateWithFlags, x, g, flags, real(x, g, flags))
}

Result cuGraphInstantiateWithParams(Exec *x, Graph g, InstantiateParams *how) {
    REAL(cuGraphInstantiateWithParams, (Exec *, Graph, InstantiateParams *));
    INSTANTIATE(cuGraphInstantiateWithParams, x, g, how ? how->flags : 0, real(x, g, how))
}

Result cuGraphInstantiateWithParams_ptsz(Exec *x, Graph g, InstantiateParams *how) {
    REAL(cuGraphInstantiateWithParams_ptsz, (Exec *, Graph, InstantiateParams *));
    INSTANTIATE(cuGraphInstantiateWithParams_ptsz, x, g, how ? how->flags : 0, real(x, g, how))
}

/* A stamped executable is updated from a graph that has stamps for the duration of the call. */
#define UPDATE(which, exec, graph, call, error_node)                                                                  \
    if (!real) return ERROR_NOT_SUPPORTED;                                                                            \
    if (!ring_there()) return call;                                                                                   \
    Node pair[2] = {NULL, NULL};                                                                                      \
    int64_t entered = ring_monotonic();                                                                               \
    uint16_t id = stamp_again(exec, graph, pair);                                                                     \
    uint64_t begin = ring_now();                                                                                      \
    int64_t called = ring_monotonic();                                                                                \
    Result result = call;                                                                                             \
    int64_t took = ring_monotonic() - called;                                                                         \
    uint64_t end = ring_now();                                                                                        \
    if (result != SUCCESS && (pair[0] || pair[1]) && (error_node) && *(error_node) &&                                 \
        (*(error_node) == pair[0] || *(error_node) == pair[1]))                                                       \
        *(error_node) = NULL;                                                                                         \
    stamps_remove(pair);                                                                                              \
    write_call(CALL_##which, begin, end, result, exec, id);                                                           \
    ring_count(COUNT_graphs_updated, 1);                                                                              \
    ring_count(COUNT_stamping_ns, (uint64_t)(ring_monotonic() - entered - took));                                     \
    return result;

Result cuGraphExecUpdate(Exec x, Graph g, Node *n, int *how) {
    REAL(cuGraphExecUpdate, (Exec, Graph, Node *, int *));
    UPDATE(cuGraphExecUpdate, x, g, real(x, g, n, how), n)
}

Result cuGraphExecUpdate_v2(Exec x, Graph g, UpdateResult *how) {
    REAL(cuGraphExecUpdate_v2, (Exec, Graph, UpdateResult *));
    UPDATE(cuGraphExecUpdate_v2, x, g, real(x, g, how), how ? &how->error_node : NULL)
}

Result cuGraphExecDestroy(Exec x) {
    uint8_t context;
    REAL(cuGraphExecDestroy, (Exec));
    if (!real) return ERROR_NOT_SUPPORTED;
    if (!ring_there()) return real(x);
    uint16_t id = id_of(x, &context);
    forget(x); /* before the call: another thread may get the same handle right after it */
    uint64_t begin = ring_now();
    Result result = real(x);
    write_call(CALL_cuGraphExecDestroy, begin, ring_now(), result, x, id);
    return result;
}

HOT static Result launch(enum Call call, Exec exec, Stream stream, int own) {
    Result (*real)(Exec, Stream) = (Result(*)(Exec, Stream))real_call(call);
    if (!real) return ERROR_NOT_SUPPORTED;
    if (!ring_there()) return real(exec, stream);
    uint32_t number = 0;
    uint8_t context = device_context();
    Stream on = stamps_stream(stream, own);
    int writes = recording(), runs = stamps_runs_now(on);
    if (writes) stamps_end(context, on);
    uint16_t id = runs ? count_launch(exec, &number) : 0;
    uint64_t begin = ring_now();
    Result result = real(exec, stream);
    uint64_t end = ring_now();
    if (id && result != SUCCESS) uncount_launch(id);
    if (!runs && result == SUCCESS) was_captured(exec);
    if (!writes) return result;
    if (id && result == SUCCESS) stamps_graph(context, on);
    Record record = {.begin = begin, .end = end, .call = (uint16_t)call, .result = (uint16_t)result,
                     .stream = (uintptr_t)on, .object = (uintptr_t)exec, .graph = id, .number = number,
                     .context = context};
    ring_write(&record);
    return result;
}

Result cuGraphLaunch(Exec x, Stream s) { return launch(CALL_cuGraphLaunch, x, s, 0); }
Result cuGraphLaunch_ptsz(Exec x, Stream s) { return launch(CALL_cuGraphLaunch_ptsz, x, s, 1); }
