/* A program that decodes: eager launches, then a graph of two kernels, launched and fetched, once per token.
 *
 * argv[1]: how it gets the driver: "direct" (linked), "dlsym", "proc" (cuGetProcAddress) or "proc1" (its first
 * interface).
 * argv[2]: what it does beside (see `main`); argv[3]: how many tokens.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../tracer/recorders/native/calls.h"

#define CALL(id, symbol, since, own, params, ...) extern Result id params WEAK;
#ifdef LINKED
#define WEAK
#else
#define WEAK __attribute__((weak))
#endif
CALLS
#undef CALL

static void *driver;
static const char *how;
static Result (*proc)(const char *, void **, int, uint64_t, int *);
static Result (*proc1)(const char *, void **, int, uint64_t);

static void *get(const char *exported, const char *symbol, void *direct) {
    void *found = NULL;
    if (strcmp(how, "direct") == 0) return direct;
    if (strcmp(how, "dlsym") == 0) return dlsym(driver, exported);
    if (strcmp(how, "proc") == 0) return proc(symbol, &found, 12000, 0, NULL), found;
    return proc1(symbol, &found, 12000, 0), found;
}
#ifdef LINKED
#define ADDRESS(name) (void *)name
#else
#define ADDRESS(name) NULL
#endif
#define GET(name, symbol) __typeof__(&name) name##_ = (__typeof__(&name))get(#name, symbol, ADDRESS(name))
#define OTHER(name, params) Result(*name) params = (Result(*) params)dlsym(driver, #name)

static int decode(const char *what, int tokens) {
    GET(cuLaunchKernel, "cuLaunchKernel");
    GET(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags");
    GET(cuGraphExecUpdate_v2, "cuGraphExecUpdate");
    GET(cuGraphLaunch, "cuGraphLaunch");
    GET(cuGraphExecDestroy, "cuGraphExecDestroy");
    GET(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync");
    GET(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync");
    GET(cuStreamSynchronize, "cuStreamSynchronize");
    GET(cuEventSynchronize, "cuEventSynchronize");
    GET(cuCtxSynchronize, "cuCtxSynchronize");
    GET(cuStreamBeginCapture_v2, "cuStreamBeginCapture");
    GET(cuStreamEndCapture, "cuStreamEndCapture");
    GET(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset");
    OTHER(cuModuleGetFunction, (Function *, Module, const char *));
    OTHER(cuStreamCreate, (Stream *, unsigned));
    OTHER(cuGraphCreate, (Graph *, unsigned));
    OTHER(cuGraphAddKernelNode, (Node *, Graph, const Node *, size_t, const KernelNode *));
    OTHER(cuGraphAddChildGraphNode, (Node *, Graph, const Node *, size_t, Graph));
    OTHER(fakeAddNode, (Node *, Graph, const Node *, size_t, int));
    OTHER(cuGraphGetNodes, (Graph, Node *, size_t *));
    Function first, second, eager;
    Stream stream;
    Graph graph, inner;
    Node a, b, c;
    Exec exec;
    size_t nodes = 0;
    char logits[64];
    cuModuleGetFunction(&first, NULL, "first"), cuModuleGetFunction(&second, NULL, "second");
    cuModuleGetFunction(&eager, NULL, "eager"), cuStreamCreate(&stream, 0), cuGraphCreate(&graph, 0);
    KernelNode kernel = {first, {1, 1, 1}, {1, 1, 1}, 0, NULL, NULL};
    cuGraphAddKernelNode(&a, graph, NULL, 0, &kernel);
    kernel.function = second;
    cuGraphAddKernelNode(&b, graph, &a, 1, &kernel);
    if (strcmp(what, "conditional") == 0) fakeAddNode(&c, graph, &b, 1, NODE_CONDITIONAL);
    if (strcmp(what, "memory") == 0) fakeAddNode(&c, graph, &b, 1, NODE_MEM_ALLOC);
    if (strcmp(what, "child") == 0 || strcmp(what, "child_memory") == 0) {
        cuGraphCreate(&inner, 0);
        if (strcmp(what, "child") == 0) cuGraphAddKernelNode(&c, inner, NULL, 0, &kernel);
        else fakeAddNode(&c, inner, NULL, 0, NODE_MEM_FREE);
        cuGraphAddChildGraphNode(&c, graph, &a, 1, inner);
    }
    int flags = strcmp(what, "device") == 0 ? INSTANTIATE_DEVICE_LAUNCH : 0;
    if (cuGraphInstantiateWithFlags_(&exec, graph, flags)) return 3;
    for (int token = 0; token < tokens; token++) {
        if (strcmp(what, "reset") == 0 && token == 1) {
            cuDevicePrimaryCtxReset_v2_(0);
            if (cuGraphInstantiateWithFlags_(&exec, graph, flags)) return 3;
        }
        if (strcmp(what, "capture") == 0 && token == 1) cuStreamBeginCapture_v2_(stream, 0);
        if (strcmp(what, "capture") == 0 && token == 2) cuStreamEndCapture_(stream, &graph);
        cuMemcpyHtoDAsync_v2_(0, logits, 16, stream);
        for (int i = 0; i < 2; i++) cuLaunchKernel_(eager, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        if (token == 1 && cuGraphExecUpdate_v2_(exec, graph, NULL)) return 4;
        if (cuGraphLaunch_(exec, stream)) return 5;
        if (strcmp(what, "behind") == 0) cuLaunchKernel_(eager, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        cuMemcpyDtoHAsync_v2_(logits, 0, sizeof logits, stream);
        if (cuStreamSynchronize_(stream)) return 6;
        if (strcmp(what, "events") == 0) cuEventSynchronize_((Event)&exec), cuCtxSynchronize_();
        if (strcmp(what, "closed") == 0) closefrom(3);
        if (strcmp(what, "killed") == 0 && token == 1) kill(getpid(), SIGKILL);
    }
    cuGraphGetNodes(graph, NULL, &nodes);
    cuGraphExecDestroy_(exec);
    return (int)nodes << 8;
}

static void *waits(void *count) {
    GET(cuStreamSynchronize, "cuStreamSynchronize");
    for (long i = 0; i < (long)count; i++) cuStreamSynchronize_(NULL);
    return NULL;
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[2] : "";
    int tokens = argc > 3 ? atoi(argv[3]) : 3, status = 0;
    how = argc > 1 ? argv[1] : "dlsym";
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return puts(dlerror()), 2;
    proc1 = (Result(*)(const char *, void **, int, uint64_t))dlsym(driver, "cuGetProcAddress");
    proc = (Result(*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    if (strcmp(what, "threads") == 0) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, waits, (void *)(long)tokens);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        return 0;
    }
    if (strcmp(what, "forks") == 0 || strcmp(what, "execs") == 0) {
        waits((void *)1L);
        pid_t child = fork();
        if (child == 0 && strcmp(what, "execs") == 0) execl("/proc/self/exe", argv[0], how, "", "1", NULL);
        if (child == 0) return waits((void *)2L), 0;
        waitpid(child, &status, 0);
        waits((void *)3L);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 9;
    }
    int nodes = decode(what, tokens);
    if (nodes < 256) return nodes;
    printf("%d nodes; %s\n", nodes >> 8, (char *)dlsym(driver, "device_log"));
    fflush(stdout);
    if (strcmp(what, "stays") == 0) getchar();
    return 0;
}
