/* Graphs: stamped where they are made executable, told apart where they are launched. */
#include <pthread.h>
#include <string.h>

#include "device.h"
#include "interpose.h"
#include "stamps.h"

enum { SLOTS = 2 * MOST_GRAPHS };

typedef struct {
    Exec exec; /* NULL: free */
    uint32_t launches;
    uint16_t id;
} Stamped;

/* Executable graph -> its stamps; open addressing, so a hole ends a search. */
static Stamped table[SLOTS];
static uint32_t given; /* ids; none is given twice */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t home_of(Exec exec) { return (size_t)(((uintptr_t)exec >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 48); }

static size_t place_of(Exec exec) {
    size_t at = home_of(exec) % SLOTS;
    while (table[at].exec && table[at].exec != exec) at = (at + 1) % SLOTS;
    return at;
}

static void remember(Exec exec, uint16_t id) {
    pthread_mutex_lock(&lock);
    table[place_of(exec)] = (Stamped){exec, 0, id};
    pthread_mutex_unlock(&lock);
}

/* The id of a stamped graph, 0 if it is none; `launched` counts a launch and gives its number. */
static uint16_t id_of(Exec exec, uint32_t *launched) {
    pthread_mutex_lock(&lock);
    Stamped *found = &table[place_of(exec)];
    uint16_t id = found->exec ? found->id : 0;
    if (id && launched) *launched = found->launches++;
    pthread_mutex_unlock(&lock);
    return id;
}

static void forget(Exec exec) {
    pthread_mutex_lock(&lock);
    size_t hole = place_of(exec);
    if (table[hole].exec) {
        for (size_t at = (hole + 1) % SLOTS; table[at].exec; at = (at + 1) % SLOTS) {
            size_t home = home_of(table[at].exec) % SLOTS;
            if ((at - home) % SLOTS >= (at - hole) % SLOTS) table[hole] = table[at], hole = at;
        }
        table[hole].exec = NULL;
    }
    pthread_mutex_unlock(&lock);
}

static uint16_t next_id(void) {
    pthread_mutex_lock(&lock);
    uint16_t id = given + 1 < CHAIN_GRAPH ? (uint16_t)++given : 0;
    pthread_mutex_unlock(&lock);
    if (!id) ring_count(COUNT_graphs_left_many, 1);
    return id;
}

static void write_call(enum Call call, uint64_t begin, uint64_t end, Result result, Exec exec, uint16_t id,
                       Stream stream, uint32_t number) {
    Record record = {.begin = begin, .end = end, .call = (uint16_t)call, .result = (uint16_t)result,
                     .stream = (uintptr_t)stream, .object = (uintptr_t)exec, .graph = id, .number = number,
                     .context = device_context()};
    if (recording()) ring_write(&record);
}

/* `result = call` with stamps in the graph, again without them if they are what it fails for. */
#define INSTANTIATE(which, exec, graph, flags, call)                                                                  \
    if (!real) return ERROR_NOT_SUPPORTED;                                                                            \
    if (!ring_there()) return call;                                                                                   \
    Node pair[2] = {NULL, NULL};                                                                                      \
    int64_t entered = ring_monotonic();                                                                               \
    uint16_t id = 0;                                                                                                  \
    if ((flags) & INSTANTIATE_DEVICE_LAUNCH)                                                                          \
        ring_count(COUNT_graphs_left_device, 1);                                                                      \
    else if ((id = next_id()) && !stamps_add(graph, id, pair))                                                        \
        id = 0;                                                                                                       \
    uint64_t begin = ring_now();                                                                                      \
    int64_t called = ring_monotonic();                                                                                \
    Result result = call;                                                                                             \
    int64_t took = ring_monotonic() - called;                                                                         \
    uint64_t end = ring_now();                                                                                        \
    stamps_remove(pair);                                                                                              \
    if (result != SUCCESS && id) {                                                                                    \
        ring_count(COUNT_graphs_left_refused, 1);                                                                     \
        id = 0, begin = ring_now(), result = call, end = ring_now();                                                  \
    }                                                                                                                 \
    if (result == SUCCESS && id) remember(*(exec), id), ring_count(COUNT_graphs_stamped, 1);                          \
    if (result == SUCCESS && !id) forget(*(exec));                                                                    \
    write_call(CALL_##which, begin, end, result, result == SUCCESS ? *(exec) : NULL, id, NULL, 0);                    \
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

/* An executable that has stamps is updated from a graph that has them for the time of the call. */
#define UPDATE(which, exec, graph, call, error_node)                                                                  \
    if (!real) return ERROR_NOT_SUPPORTED;                                                                            \
    if (!ring_there()) return call;                                                                                   \
    Node pair[2] = {NULL, NULL};                                                                                      \
    int64_t entered = ring_monotonic();                                                                               \
    uint16_t id = id_of(exec, NULL);                                                                                  \
    if (id) stamps_add(graph, id, pair);                                                                              \
    uint64_t begin = ring_now();                                                                                      \
    int64_t called = ring_monotonic();                                                                                \
    Result result = call;                                                                                             \
    int64_t took = ring_monotonic() - called;                                                                         \
    uint64_t end = ring_now();                                                                                        \
    if ((error_node) && *(error_node) && (*(error_node) == pair[0] || *(error_node) == pair[1])) *(error_node) = NULL;\
    stamps_remove(pair);                                                                                              \
    write_call(CALL_##which, begin, end, result, exec, id, NULL, 0);                                                  \
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
    REAL(cuGraphExecDestroy, (Exec));
    if (!real) return ERROR_NOT_SUPPORTED;
    if (!ring_there()) return real(x);
    uint16_t id = id_of(x, NULL);
    forget(x); /* before the call: another thread may get the same handle right after it */
    uint64_t begin = ring_now();
    Result result = real(x);
    write_call(CALL_cuGraphExecDestroy, begin, ring_now(), result, x, id, NULL, 0);
    return result;
}

static Result launch(enum Call call, Exec exec, Stream stream, int own) {
    Result (*real)(Exec, Stream) = (Result(*)(Exec, Stream))real_call(call);
    if (!real) return ERROR_NOT_SUPPORTED;
    if (!ring_there()) return real(exec, stream);
    uint32_t number = 0;
    int writes = recording();
    if (writes) stamps_end(stream, own);
    uint16_t id = stamps_runs_now(stamps_stream(stream, own)) ? id_of(exec, &number) : 0; /* as the device counts */
    if (!writes) return real(exec, stream);
    uint64_t begin = ring_now();
    Result result = real(exec, stream);
    uint64_t end = ring_now();
    if (id && result == SUCCESS) stamps_graph(stream, own);
    write_call(call, begin, end, result, exec, id, stamps_stream(stream, own), number);
    return result;
}

Result cuGraphLaunch(Exec x, Stream s) { return launch(CALL_cuGraphLaunch, x, s, 0); }
Result cuGraphLaunch_ptsz(Exec x, Stream s) { return launch(CALL_cuGraphLaunch_ptsz, x, s, 1); }
