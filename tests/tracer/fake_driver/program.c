/* A program that decodes three tokens: a graph of two kernels, launched and fetched, after a run of eager launches.
 *
 * argv[1]: how it gets the driver: "direct", "dlsym", "proc" (cuGetProcAddress), "proc1" (its first interface).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../tracer/recorders/native/calls.h"

#define CALL(id, symbol, since, own, params, ...) extern Result id params __attribute__((weak));
CALLS
#undef CALL
Result cuModuleLoadData(Module *, const void *) __attribute__((weak));

static void *driver;
static Result (*proc)(const char *, void **, int, uint64_t, int *);
static Result (*proc1)(const char *, void **, int, uint64_t);

static void *get(const char *how, const char *exported, const char *symbol, int version, void *direct) {
    void *found = NULL;
    if (strcmp(how, "direct") == 0) return direct;
    if (strcmp(how, "dlsym") == 0) return dlsym(driver, exported);
    if (strcmp(how, "proc") == 0) return proc(symbol, &found, version, 0, NULL), found;
    return proc1(symbol, &found, version, 0), found;
}
#define GET(name, symbol, version) __typeof__(&name) name##_ = (__typeof__(&name))get(how, #name, symbol, version, (void *)name)
#define OTHER(name, params) Result (*name) params = (Result(*) params)dlsym(driver, #name)

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "dlsym";
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return puts(dlerror()), 2;
    proc1 = (Result(*)(const char *, void **, int, uint64_t))dlsym(driver, "cuGetProcAddress");
    proc = (Result(*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    GET(cuLaunchKernel, "cuLaunchKernel", 12000);
    GET(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 12000);
    GET(cuGraphExecUpdate_v2, "cuGraphExecUpdate", 12000);
    GET(cuGraphLaunch, "cuGraphLaunch", 12000);
    GET(cuGraphExecDestroy, "cuGraphExecDestroy", 12000);
    GET(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 12000);
    GET(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 12000);
    GET(cuStreamSynchronize, "cuStreamSynchronize", 12000);
    OTHER(cuModuleGetFunction, (Function *, Module, const char *));
    OTHER(cuStreamCreate, (Stream *, unsigned));
    OTHER(cuGraphCreate, (Graph *, unsigned));
    OTHER(cuGraphAddKernelNode, (Node *, Graph, const Node *, size_t, const KernelNode *));
    OTHER(cuGraphGetNodes, (Graph, Node *, size_t *));
    Function first, second, eager;
    Stream stream;
    Graph graph;
    Node a, b;
    Exec exec;
    size_t nodes = 0;
    char logits[64];
    cuModuleGetFunction(&first, NULL, "first"), cuModuleGetFunction(&second, NULL, "second");
    cuModuleGetFunction(&eager, NULL, "eager"), cuStreamCreate(&stream, 0), cuGraphCreate(&graph, 0);
    KernelNode kernel = {first, {1, 1, 1}, {1, 1, 1}, 0, NULL, NULL};
    cuGraphAddKernelNode(&a, graph, NULL, 0, &kernel);
    kernel.function = second;
    cuGraphAddKernelNode(&b, graph, &a, 1, &kernel);
    if (cuGraphInstantiateWithFlags_(&exec, graph, 0)) return 3;
    for (int token = 0; token < 3; token++) {
        cuMemcpyHtoDAsync_v2_(0, logits, 16, stream);
        for (int i = 0; i < 2; i++) cuLaunchKernel_(eager, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        if (token == 1 && cuGraphExecUpdate_v2_(exec, graph, NULL)) return 4;
        if (cuGraphLaunch_(exec, stream)) return 5;
        cuMemcpyDtoHAsync_v2_(logits, 0, sizeof logits, stream);
        if (cuStreamSynchronize_(stream)) return 6;
    }
    cuGraphGetNodes(graph, NULL, &nodes);
    cuGraphExecDestroy_(exec);
    printf("%zu nodes; %s\n", nodes, (char *)dlsym(driver, "device_log"));
    return 0;
}
