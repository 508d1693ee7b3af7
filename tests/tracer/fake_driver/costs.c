/* How long a call takes, ns, with the driver's part, which is next to nothing: the fastest of some rounds of each kind.
 *
 * Prints one line per kind: its name and the ns of a call. Those named "cold" are timed after the program has used more
 * memory and code than the caches near a core hold, as an engine does between its calls: the median of single calls.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "../../../tracer/recorders/native/calls.h"

#if defined(__x86_64__)
#define RETURN 0xc3
#endif
enum { ROUNDS = 200, CALLS_A_ROUND = 500 };

#define GET(name, params) Result(*name) params = (Result(*) params)dlsym(driver, #name)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

#define MEASURE(name, call)                                                                                           \
    do {                                                                                                              \
        double least = 1e18;                                                                                          \
        for (int round = 0; round < ROUNDS; round++) {                                                                \
            double begun = now();                                                                                     \
            for (int i = 0; i < CALLS_A_ROUND; i++) call;                                                             \
            double took = (now() - begun) / CALLS_A_ROUND;                                                            \
            if (took < least) least = took;                                                                           \
        }                                                                                                             \
        printf("%s %.1f\n", name, least);                                                                             \
    } while (0)

enum { COLD_CALLS = 1000, USED_BYTES = 1 << 23, CODE_BYTES = 1 << 22, LINE = 64 };

static int rises(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Evicts what the last call left in the first- and second-level caches, and in the buffers of translated addresses. */
static void use_memory(void) {
    static volatile unsigned char used[USED_BYTES];
    for (size_t at = 0; at < USED_BYTES; at += LINE) used[at]++;
#ifdef RETURN
    static char *code;
    if (!code) {
        code = mmap(NULL, CODE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(code, RETURN, CODE_BYTES);
        mprotect(code, CODE_BYTES, PROT_READ | PROT_EXEC);
    }
    for (size_t at = 0; at < CODE_BYTES; at += 33 * LINE) ((void (*)(void))(code + at))();
#endif
}

#define MEASURE_COLD(name, call)                                                                                      \
    do {                                                                                                              \
        static double took[COLD_CALLS];                                                                               \
        for (int i = 0; i < COLD_CALLS; i++) {                                                                        \
            use_memory();                                                                                             \
            double begun = now();                                                                                     \
            call;                                                                                                     \
            took[i] = now() - begun;                                                                                  \
        }                                                                                                             \
        qsort(took, COLD_CALLS, sizeof *took, rises);                                                                 \
        printf("%s %.1f\n", name, took[COLD_CALLS / 2]);                                                              \
    } while (0)

static void *nothing(void *none) { return none; }

int main(void) {
    pthread_t thread; /* a CUDA program has threads, and then a lock costs the C library more */
    if (pthread_create(&thread, NULL, nothing, NULL) == 0) pthread_join(thread, NULL);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    GET(cuLaunchKernel, (Function, GRID, Stream, void **, void **));
    GET(cuMemcpyHtoDAsync_v2, (DevicePointer, const void *, size_t, Stream));
    GET(cuStreamSynchronize, (Stream));
    GET(cuEventRecord, (Event, Stream));
    GET(cuEventQuery, (Event));
    GET(cuGraphInstantiateWithFlags, (Exec *, Graph, unsigned long long));
    GET(cuGraphLaunch, (Exec, Stream));
    GET(cuModuleGetFunction, (Function *, Module, const char *));
    GET(cuStreamCreate, (Stream *, unsigned));
    GET(cuGraphCreate, (Graph *, unsigned));
    GET(cuGraphAddKernelNode, (Node *, Graph, const Node *, size_t, const KernelNode *));
    Function kernel;
    Stream one, other;
    Graph graph;
    Node node;
    Exec exec;
    char bytes[16];
    cuModuleGetFunction(&kernel, NULL, ""), cuStreamCreate(&one, 0), cuStreamCreate(&other, 0);
    cuGraphCreate(&graph, 0);
    KernelNode facts = {kernel, {1, 1, 1}, {1, 1, 1}, 0, NULL, NULL};
    cuGraphAddKernelNode(&node, graph, NULL, 0, &facts);
    cuGraphInstantiateWithFlags(&exec, graph, 0);
#define LAUNCH_ON(stream) cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)
    MEASURE("copy", cuMemcpyHtoDAsync_v2(0, bytes, 16, one));
    MEASURE("launch", LAUNCH_ON(one));
    MEASURE_COLD("launch_cold", LAUNCH_ON(one));
    MEASURE("launch_on_two_streams", LAUNCH_ON(i % 2 ? one : other));
    MEASURE("event_query", cuEventQuery((Event)&exec));
    MEASURE_COLD("event_query_cold", cuEventQuery((Event)&exec));
    MEASURE_COLD("copy_cold", cuMemcpyHtoDAsync_v2(0, bytes, 16, one));
    MEASURE("event_record", cuEventRecord((Event)&exec, one));
    cuStreamSynchronize(one), cuStreamSynchronize(other);
    MEASURE("synchronize", cuStreamSynchronize(one));
    MEASURE("launch_and_synchronize", (LAUNCH_ON(one), cuStreamSynchronize(one)));
    MEASURE_COLD("synchronize_cold", cuStreamSynchronize(one));
    MEASURE_COLD("event_record_cold", cuEventRecord((Event)&exec, one));
    MEASURE_COLD("graph_launch_cold", cuGraphLaunch(exec, one));
    MEASURE("graph_launch", cuGraphLaunch(exec, one));
    return 0;
}
