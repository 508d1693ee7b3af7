/* Graphs: launches are steps, and their copies are counted, as no witness can follow them. */
#include <pthread.h>

#include "races.h"

enum { GRAPHS = 1 << 10, MOST_NODES = 4096, DEEPEST = 4, NODE_COPY = 1 };

typedef struct {
    Exec exec;
    uint64_t h2d, d2h;
} Copies;
static Copies known[GRAPHS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Copies *place_of(Exec exec) {
    return &known[(uintptr_t)exec * UINT64_C(0x9e3779b97f4a7c15) >> 54];
}

static int on_host(unsigned type, DevicePointer unified) {
    return type == MEMORY_HOST ||
           (type == MEMORY_UNIFIED && memory_of((void *)(uintptr_t)unified, NULL, NULL) != ON_DEVICE);
}

static void count_copies(Graph graph, Copies *copies, int depth) {
    static Node nodes[DEEPEST][MOST_NODES]; /* with the lock */
    size_t count = MOST_NODES;
    int type;
    if (!ours.cuGraphGetNodes || !ours.cuGraphNodeGetType || !ours.cuGraphMemcpyNodeGetParams) return;
    if (depth == DEEPEST || ours.cuGraphGetNodes(graph, nodes[depth], &count)) return;
    for (size_t i = 0; i < count && i < MOST_NODES; i++) {
        Node node = nodes[depth][i];
        Graph inner;
        Copy3D copy = {.width = 0};
        if (ours.cuGraphNodeGetType(node, &type)) continue;
        if (type == NODE_GRAPH && ours.cuGraphChildGraphNodeGetGraph &&
            !ours.cuGraphChildGraphNodeGetGraph(node, &inner))
            count_copies(inner, copies, depth + 1);
        if (type != NODE_COPY || ours.cuGraphMemcpyNodeGetParams(node, &copy)) continue;
        int from_host = on_host(copy.src.type, copy.src.device);
        int to_host = on_host(copy.dst.type, copy.dst.device);
        copies->h2d += from_host && !to_host, copies->d2h += to_host && !from_host;
    }
}

static void instantiated(Exec exec, Graph graph) {
    Inside before = inside();
    pthread_mutex_lock(&lock);
    Copies copies = {.exec = exec};
    count_copies(graph, &copies, 0);
    *place_of(exec) = copies;
    pthread_mutex_unlock(&lock);
    log_count(LOGGED_graph_h2d_nodes, copies.h2d), log_count(LOGGED_graph_d2h_nodes, copies.d2h);
    outside(before);
}

#define INSTANTIATE(id, params, args)                                                                                 \
    Result id params {                                                                                                \
        REAL(id, params);                                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!races_on()) return real args;                                                                            \
        Result result = real args;                                                                                    \
        if (result == SUCCESS) instantiated(*x, g);                                                                   \
        return result;                                                                                                \
    }
INSTANTIATE(cuGraphInstantiate, (Exec * x, Graph g, Node *n, char *log, size_t size), (x, g, n, log, size))
INSTANTIATE(cuGraphInstantiate_v2, (Exec * x, Graph g, Node *n, char *log, size_t size), (x, g, n, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (Exec * x, Graph g, unsigned long long flags), (x, g, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (Exec * x, Graph g, InstantiateParams *how), (x, g, how))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (Exec * x, Graph g, InstantiateParams *how), (x, g, how))

#define LAUNCH(id, own)                                                                                               \
    Result id(Exec x, Stream s) {                                                                                     \
        REAL(id, (Exec, Stream));                                                                                     \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!races_on()) return real(x, s);                                                                           \
        Inside before = inside();                                                                                     \
        Stream given = stream_given(s, own);                                                                          \
        StreamState *stream = stream_of(given);                                                                       \
        int captures = stream_is_capturing(given);                                                                    \
        stream_enter(stream);                                                                                         \
        if (!captures) delays_hold(stream), delay(KIND_GRAPH, stream, NULL);                                          \
        outside(before);                                                                                              \
        Result result = real(x, s);                                                                                   \
        before = inside();                                                                                            \
        stream_leave(stream);                                                                                         \
        if (result == SUCCESS && !captures) {                                                                         \
            pthread_mutex_lock(&lock);                                                                                \
            Copies copies = *place_of(x);                                                                             \
            pthread_mutex_unlock(&lock);                                                                              \
            if (copies.exec == x) log_count(LOGGED_graph_h2d_copies, copies.h2d);                                     \
            if (copies.exec == x) log_count(LOGGED_graph_d2h_copies, copies.d2h);                                     \
            log_count(LOGGED_graph_launches, 1);                                                                      \
            atomic_fetch_add(&log_header->steps, 1);                                                                  \
            delays_step();                                                                                            \
        }                                                                                                             \
        outside(before);                                                                                              \
        return result;                                                                                                \
    }
LAUNCH(cuGraphLaunch, 0)
LAUNCH(cuGraphLaunch_ptsz, 1)
