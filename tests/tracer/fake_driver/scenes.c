/* Short programs that do what few programs do; argv[1] is which. Prints what the driver did. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../tracer/recorders/native/calls.h"

static void *driver;
static char **arguments;
static Function kernel;
static Stream stream;

#define NEED(name, params) static Result(*name) params
NEED(cuLaunchKernel_, (Function, GRID, Stream, void **, void **));
NEED(cuLaunchKernel_ptsz_, (Function, GRID, Stream, void **, void **));
NEED(cuStreamSynchronize_, (Stream));
NEED(cuStreamQuery_, (Stream));
NEED(cuStreamCreate_, (Stream *, unsigned));
NEED(cuStreamDestroy_v2_, (Stream));
NEED(cuCtxSynchronize_, (void));
NEED(cuCtxSynchronize_v2_, (Context));
NEED(cuCtxCreate_v2_, (Context *, unsigned, int));
NEED(cuCtxSetCurrent_, (Context));
NEED(cuCtxGetCurrent_, (Context *));
NEED(cuCtxDestroy_v2_, (Context));
NEED(cuModuleGetFunction_, (Function *, Module, const char *));
NEED(cuGraphCreate_, (Graph *, unsigned));
NEED(cuGraphAddKernelNode_, (Node *, Graph, const Node *, size_t, const KernelNode *));
NEED(cuGraphInstantiateWithFlags_, (Exec *, Graph, unsigned long long));
NEED(cuGraphExecUpdate_v2_, (Exec, Graph, UpdateResult *));
NEED(cuGraphLaunch_, (Exec, Stream));
NEED(cuGraphExecDestroy_, (Exec));
NEED(cuEventRecord_, (Event, Stream));
NEED(cuEventSynchronize_, (void *));
NEED(cuStreamWaitEvent_, (Stream, Event, unsigned));
NEED(cuMemcpyHtoDAsync_v2_, (DevicePointer, const void *, size_t, Stream));

static void find_all(void) {
#define FIND(name) name##_ = (__typeof__(name##_))dlsym(driver, #name)
    FIND(cuLaunchKernel), FIND(cuLaunchKernel_ptsz), FIND(cuStreamSynchronize), FIND(cuStreamQuery);
    FIND(cuStreamCreate), FIND(cuStreamDestroy_v2), FIND(cuCtxSynchronize), FIND(cuCtxSynchronize_v2);
    FIND(cuCtxCreate_v2), FIND(cuCtxSetCurrent), FIND(cuCtxGetCurrent), FIND(cuCtxDestroy_v2);
    FIND(cuModuleGetFunction), FIND(cuGraphCreate), FIND(cuGraphAddKernelNode), FIND(cuGraphInstantiateWithFlags);
    FIND(cuGraphExecUpdate_v2), FIND(cuGraphLaunch), FIND(cuGraphExecDestroy), FIND(cuEventRecord);
    FIND(cuMemcpyHtoDAsync_v2), FIND(cuEventSynchronize), FIND(cuStreamWaitEvent);
    cuModuleGetFunction_(&kernel, NULL, "eager"), cuStreamCreate_(&stream, 0);
}

static Result launch_on(Stream on) { return cuLaunchKernel_(kernel, 1, 1, 1, 1, 1, 1, 0, on, NULL, NULL); }

static Graph graph_of(int kernels) {
    Graph graph;
    Node node = NULL;
    KernelNode facts = {kernel, {1, 1, 1}, {1, 1, 1}, 0, NULL, NULL};
    cuGraphCreate_(&graph, 0);
    for (int i = 0; i < kernels; i++) cuGraphAddKernelNode_(&node, graph, &node, i ? 1 : 0, &facts);
    return graph;
}

static Exec exec_of(Graph graph) {
    Exec exec = NULL;
    if (cuGraphInstantiateWithFlags_(&exec, graph, 0)) exit(11);
    return exec;
}

/* Runs a scene's other thread to its end. */
static void elsewhere(void *(*does)(void *), void *with) {
    pthread_t thread;
    pthread_create(&thread, NULL, does, with);
    pthread_join(thread, NULL);
}

static void *destroys(void *on) { return (void *)(long)cuStreamDestroy_v2_(on); }
static void *waits(void *on) { return (void *)(long)cuStreamSynchronize_(on); }
static void *launches(void *on) { return (void *)(long)launch_on(on); }
static void *launches_own(void *on) {
    for (int i = 0; i < 3; i++) cuLaunchKernel_ptsz_(kernel, 1, 1, 1, 1, 1, 1, 0, on, NULL, NULL);
    return (void *)(long)cuStreamSynchronize_((Stream)2);
}

static void destroyed(void) { launch_on(stream), cuStreamDestroy_v2_(stream), cuCtxSynchronize_(); }
static void destroyed_elsewhere(void) { launch_on(stream), elsewhere(destroys, stream), cuCtxSynchronize_(); }

/* The next stream has the handle of one that was destroyed, and is not behind what was done there. */
static void handle_again(void) {
    launch_on(stream), cuEventRecord_((Event)&stream, stream);
    cuStreamDestroy_v2_(stream), cuStreamCreate_(&stream, 0);
    launch_on(stream), cuStreamSynchronize_(stream);
}

static void waited_elsewhere(void) {
    launch_on(stream), elsewhere(waits, stream);
    launch_on(stream), cuStreamSynchronize_(stream);
}

static void launched_elsewhere(void) { launch_on(stream), elsewhere(launches, stream), cuStreamSynchronize_(stream); }

/* Two runs of 40 launches with a copy in each. */
static void parts(void) {
    for (int i = 0; i < 80; i++) {
        launch_on(stream);
        if (i % 40 == 20) cuMemcpyHtoDAsync_v2_(0, arguments, 4, stream);
        if (i % 40 == 39) cuStreamSynchronize_(stream);
    }
}

/* One launch, a wait for an event in front of it, and another that then comes late. */
static void waits_between(void) {
    for (int i = 0; i < 6; i++) launch_on(stream), cuEventSynchronize_(arguments), launch_on(stream), cuStreamSynchronize_(stream);
}

/* A stream that was launched into is captured by way of another, which nobody tells us. */
static void captured_between(void) {
    launch_on(stream), *(int *)stream = 1, launch_on(stream), *(int *)stream = 0, cuStreamSynchronize_(stream);
}

/* Steps of four runs, each of a kernel of its own that is launched twice; the host pauses in between. */
static void sampled(void) {
    Function kernels[4];
    int steps = arguments[2] ? atoi(arguments[2]) : 1;
    for (int i = 0; i < 4; i++) cuModuleGetFunction_(&kernels[i], NULL, "eager");
    for (int i = 0; i < 4 * steps; i++) {
        for (int j = 0; j < 2; j++) cuLaunchKernel_(kernels[i % 4], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        if (i % 4 < 3) cuEventRecord_((Event)&stream, stream);
        else cuStreamSynchronize_(stream), usleep(50);
    }
}

static void decode_run(Function *kernels, int count, Stream on) {
    for (int i = 0; i < count; i++) cuLaunchKernel_(kernels[i], 1, 1, 1, 1, 1, 1, 0, on, NULL, NULL);
    cuEventRecord_((Event)&kernel, on);
}

/* As SGLang decodes: much else before, then steps of short runs of kernels, each on one of two streams, around a graph;
 * the streams wait for each other, the host for an event unless it is ahead (argv[3]). */
static void decodes(void) {
    Function kernels[16], others[400];
    Stream beside;
    Exec exec = exec_of(graph_of(1));
    cuStreamCreate_(&beside, 0);
    for (int i = 0; i < 400; i++) cuModuleGetFunction_(&others[i], NULL, "eager");
    for (int i = 0; i < 16; i++) cuModuleGetFunction_(&kernels[i], NULL, "eager");
    for (int i = 0; i < 8; i++) decode_run(others, 400, stream);
    cuStreamSynchronize_(stream);
    for (int i = 0; i < atoi(arguments[2]); i++) {
        decode_run(kernels, 4, beside);
        cuStreamWaitEvent_(stream, (Event)&kernel, 0);
        decode_run(kernels + 4, 8, stream);
        cuGraphLaunch_(exec, stream);
        decode_run(kernels + 12, 4, stream);
        cuStreamWaitEvent_(beside, (Event)&kernel, 0);
        if (!arguments[3]) usleep(1000), cuEventSynchronize_((Event)&kernel);
    }
}

static void own_streams(void) {
    for (int i = 0; i < 3; i++) elsewhere(launches_own, NULL);
}

static void failed_launches(void) {
    int *failing = dlsym(driver, "fake_failing");
    Exec exec = exec_of(graph_of(1));
    for (int i = 0; i < 8; i++) *failing = i % 3 == 1, cuGraphLaunch_(exec, stream), cuStreamSynchronize_(stream);
}

static void many_graphs(void) {
    Graph graph = graph_of(1);
    for (int i = 0; i < 70000; i++) {
        Exec exec = exec_of(graph);
        if (i % 1000 == 999) cuGraphLaunch_(exec, stream);
        cuGraphExecDestroy_(exec);
    }
    cuStreamSynchronize_(stream);
}

static void many_launches(void) {
    Exec exec = exec_of(graph_of(1));
    for (int i = 0; i < 70000; i++) cuGraphLaunch_(exec, stream), cuStreamSynchronize_(stream);
}

static Context current(void) {
    Context found;
    return cuCtxGetCurrent_(&found), found;
}

static void other_context(void) {
    Context first = current(), second;
    launch_on(stream), cuCtxCreate_v2_(&second, 0, 1), cuStreamSynchronize_(stream);
    cuCtxSetCurrent_(NULL), cuCtxSetCurrent_(first);
    launch_on(stream), cuCtxSetCurrent_(NULL), cuStreamSynchronize_(stream), cuCtxSetCurrent_(first);
    launch_on(stream), cuCtxSetCurrent_(second), cuCtxSynchronize_(), cuCtxSynchronize_v2_(first);
}

static void update_elsewhere(void) {
    Graph graph = graph_of(2);
    Exec exec = exec_of(graph);
    Context first = current(), second;
    if (cuGraphExecUpdate_v2_(exec, graph, NULL)) exit(12);
    cuCtxSetCurrent_(NULL);
    if (cuGraphExecUpdate_v2_(exec, graph, NULL)) exit(13);
    cuCtxCreate_v2_(&second, 0, 1);
    if (cuGraphExecUpdate_v2_(exec, graph, NULL)) exit(14);
    cuCtxSetCurrent_(first), cuGraphLaunch_(exec, stream), cuStreamSynchronize_(stream);
}

static void ended_context(void) {
    Context first = current(), second;
    cuCtxCreate_v2_(&second, 0, 1);
    cuModuleGetFunction_(&kernel, NULL, "eager"), launch_on(NULL);
    cuCtxDestroy_v2_(second), cuCtxSetCurrent_(first);
    cuCtxSynchronize_();
}

static void many_contexts(void) {
    for (int i = 0; i < 40; i++) {
        Context one;
        cuCtxCreate_v2_(&one, 0, 0), cuModuleGetFunction_(&kernel, NULL, "eager");
        launch_on(NULL), cuCtxSynchronize_(), cuCtxDestroy_v2_(one);
    }
}

static void asked(void) {
    launch_on(stream), usleep(20000);
    if (cuStreamQuery_(stream)) exit(15);
    launch_on(stream);
    while (cuStreamQuery_(stream)) usleep(100);
    cuStreamSynchronize_(stream);
}

static void *synchronizes(void *count) {
    for (long i = 0; i < (long)count; i++) usleep(10000), cuCtxSynchronize_();
    return NULL;
}
static void *synchronizes_another(void *count) {
    Context mine;
    cuCtxCreate_v2_(&mine, 0, 1);
    return synchronizes(count);
}
static void launches_meanwhile(void *(*does)(void *)) {
    pthread_t thread;
    pthread_create(&thread, NULL, does, (void *)20);
    for (int i = 0; i < 200; i++) launch_on(stream), usleep(1000), i % 20 == 19 && cuStreamSynchronize_(stream);
    pthread_join(thread, NULL);
}
static void threads(void) { launches_meanwhile(synchronizes); }
static void threads_of_two(void) { launches_meanwhile(synchronizes_another); }

/* Threads that launch, wait, and end streams at once, for sanitizers. */
static void *busy(void *number) {
    for (int i = 0; i < 300; i++) {
        Stream mine;
        cuStreamCreate_(&mine, 0), launch_on(mine), launch_on(stream);
        if (i % 3 == (long)number % 3) cuCtxSynchronize_();
        if (i % 5 == 0) cuStreamSynchronize_(stream), cuStreamQuery_(stream);
        cuStreamDestroy_v2_(mine);
    }
    return NULL;
}
static void crowd(void) {
    pthread_t all[4];
    for (long i = 0; i < 4; i++) pthread_create(&all[i], NULL, busy, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
}

static _Atomic int is_over;
static void *keeps_launching(void *exec) {
    while (!is_over) cuGraphLaunch_(exec, NULL);
    return NULL;
}
static void forks_while_busy(void) {
    pthread_t thread;
    Exec exec = exec_of(graph_of(1)), other = exec_of(graph_of(1));
    pthread_create(&thread, NULL, keeps_launching, exec);
    for (int i = 0; i < 100; i++) {
        int status;
        pid_t child = fork();
        if (!child) alarm(5), cuGraphExecDestroy_(other), _exit(0);
        waitpid(child, &status, 0);
        if (status) printf("a child ended with %d\n", status), exit(16);
    }
    is_over = 1, pthread_join(thread, NULL);
}

/* As a program would that is to be profiled in its middle, and goes on for long. */
static void windowed(void) {
    Result (*start)(void) = dlsym(driver, "cuProfilerStart"), (*stop)(void) = dlsym(driver, "cuProfilerStop");
    Exec exec = exec_of(graph_of(1));
    for (int i = 0; i < 5; i++) {
        if (i == 1) start();
        if (i == 4) stop();
        cuGraphLaunch_(exec, stream), cuStreamSynchronize_(stream);
    }
    if (!arguments[2]) return;
    puts("over"), fflush(stdout), getchar();
    for (int i = 0; i < 70000; i++) cuGraphLaunch_(exec, stream);
}

static void asks(void) { cuStreamQuery_(stream); }
static void called_back(void) {
    void (**called)(void) = dlsym(driver, "fake_called");
    *called = asks;
    for (int i = 0; i < 2; i++) launch_on(stream), cuStreamSynchronize_(stream);
    *called = NULL;
}

static void execs(void) {
    cuStreamSynchronize_(stream);
    if (arguments[2]) return;
    execl("/proc/self/exe", arguments[0], arguments[1], "again", NULL);
}

/* Each kernel is launched once: looked up in a module, in a library, the function of that one, and one of which nobody
 * says more than its name, after its launch. */
static void named(void) {
    Result (*library)(Function *, void *, const char *) = dlsym(driver, "cuLibraryGetKernel");
    Result (*function)(Function *, Function) = dlsym(driver, "cuKernelGetFunction");
    Result (*name)(const char **, Function) = dlsym(driver, "cuKernelGetName");
    Function (*made)(const char *) = dlsym(driver, "fake_kernel");
    Function kernels[4];
    const char *said = NULL;
    library(&kernels[0], NULL, "_Z4gemvPKfPfi"), function(&kernels[1], kernels[0]);
    kernels[2] = made("one\ttwo\nthree"), kernels[3] = made("nobody says");
    launch_on(stream);
    for (int i = 0; i < 4; i++) cuLaunchKernel_(kernels[i], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    for (int i = 0; i < 9; i++) name(&said, kernels[2]);
    cuStreamSynchronize_(stream);
}

/* Before its first CUDA call. */
static void take_title(void) {
    memset(arguments[0], 0, strlen(arguments[0]));
    strcpy(arguments[0], "VLLM::EngineCore");
    pthread_setname_np(pthread_self(), "VLLM::EngineCor");
}
static void titled(void) { cuStreamSynchronize_(stream); }

/* The driver is asked for its legacy stream by the finder of the per-thread ones. */
static void legacy_flag(void) {
    Result (*find)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2_ptsz");
    Result (*legacy)(Stream) = NULL, (*own)(Stream) = NULL;
    find("cuStreamSynchronize", (void **)&legacy, 12000, LEGACY_STREAM, NULL), legacy(NULL);
    find("cuStreamSynchronize", (void **)&own, 12000, 0, NULL), own(NULL);
}

static void probe(void) {
    void *found = dlsym(RTLD_DEFAULT, "cuLaunchKernel"), *finder = dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
    printf("%s %s %s\n", found ? "there" : "nothing", finder ? "there" : "nothing", dlerror() ? "error" : "fine");
}

/* Launches for argv[3] ms, and waits as argv[2] says; then it does nothing until its input ends, is killed, or goes on in
 * a child, which exits while its clock is being read. */
static void clocked(void) {
    const char *how = arguments[2];
    int ms = atoi(arguments[3]);
    const char *then = arguments[4] ? arguments[4] : "";
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (int i = 0;; i++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 >= ms) break;
        launch_on(stream), cuEventRecord_((Event)&stream, stream);
        if (strcmp(how, "late") == 0) usleep(3000);
        if (strcmp(how, "polls") == 0) while (cuStreamQuery_(stream)) usleep(20);
        else if (strcmp(how, "never") && (strcmp(how, "rarely") || i % 100 == 0)) cuStreamSynchronize_(stream);
        usleep(300);
    }
    if (strcmp(then, "stays") == 0) puts("over"), fflush(stdout), getchar(), launch_on(stream), usleep(60000), launch_on(stream), getchar();
    if (strcmp(then, "killed") == 0) kill(getpid(), SIGKILL);
    if (strcmp(then, "execs") == 0) execl("/proc/self/exe", arguments[0], "clocked", how, arguments[3], NULL);
    if (strcmp(then, "forks") == 0) {
        int status;
        pid_t child = fork();
        if (!child) usleep(1000), launch_on(stream), exit(0);
        waitpid(child, &status, 0), launch_on(stream);
        if (status) exit(17);
    }
}

/* Two contexts of two devices, launched into in turn; one is destroyed while its clock is known. */
static void two_clocks(void) {
    Context contexts[2] = {current()};
    Function kernels[2] = {kernel};
    Stream streams[2] = {stream};
    cuCtxCreate_v2_(&contexts[1], 0, 1);
    cuModuleGetFunction_(&kernels[1], NULL, "eager"), cuStreamCreate_(&streams[1], 0);
    for (int i = 0; i < 600; i++) {
        int at = i % 2;
        cuCtxSetCurrent_(contexts[at]), kernel = kernels[at];
        launch_on(streams[at]), cuEventRecord_((Event)&streams[at], streams[at]);
        if (i % 10 > 7) cuStreamSynchronize_(streams[at]);
        usleep(500);
    }
    cuCtxSetCurrent_(contexts[1]), cuCtxDestroy_v2_(contexts[1]), cuCtxSetCurrent_(contexts[0]);
    for (int i = 0; i < 300; i++) kernel = kernels[0], launch_on(streams[0]), cuStreamSynchronize_(streams[0]), usleep(500);
}

static _Atomic int functions;
static void function(void *times) { functions += *(int *)times, usleep(2000); }
static void callback(Stream on, Result result, void *times) { functions += on == stream && !result ? *(int *)times : 100; }

/* Host functions behind a launch: run twice, refused once, captured once; and a stream that waits for a value. */
static void host_functions(void) {
    Result (*put)(Stream, HostFunction, void *) = dlsym(driver, "cuLaunchHostFunc");
    Result (*add)(Stream, StreamCallback, void *, unsigned) = dlsym(driver, "cuStreamAddCallback");
    Result (*write)(Stream, DevicePointer, uint32_t, unsigned) = dlsym(driver, "cuStreamWriteValue32_v2");
    static const int one = 1, ten = 10;
    launch_on(stream), put(stream, function, (void *)&one);
    launch_on(stream), add(stream, callback, (void *)&ten, 0), cuStreamSynchronize_(stream);
    *(int *)stream = 1, put(stream, function, (void *)&one), *(int *)stream = 0;
    launch_on(stream), write(stream, 64, 7, 0), cuStreamSynchronize_(stream);
    put(NULL, function, (void *)&one);
    printf("%d functions; ", functions);
}

#define SCENE(name) {#name, name}
static const struct {
    const char *name;
    void (*play)(void);
} scenes[] = {
    SCENE(destroyed), SCENE(destroyed_elsewhere), SCENE(handle_again), SCENE(waited_elsewhere),
    SCENE(launched_elsewhere), SCENE(own_streams), SCENE(failed_launches), SCENE(many_graphs), SCENE(many_launches),
    SCENE(other_context), SCENE(update_elsewhere), SCENE(ended_context), SCENE(many_contexts), SCENE(asked),
    SCENE(threads), SCENE(threads_of_two), SCENE(crowd), SCENE(forks_while_busy), SCENE(execs), SCENE(titled), SCENE(named), SCENE(called_back), SCENE(windowed), SCENE(parts), SCENE(sampled), SCENE(decodes), SCENE(waits_between), SCENE(captured_between), SCENE(legacy_flag), SCENE(clocked), SCENE(two_clocks), SCENE(host_functions),
};

int main(int argc, char **argv) {
    arguments = argv;
    if (strcmp(argv[1], "probe") == 0) return probe(), 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return puts(dlerror()), 2;
    if (strcmp(argv[1], "titled") == 0) take_title();
    find_all();
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(argv[1], scenes[i].name) == 0) scenes[i].play();
    puts((char *)dlsym(driver, "device_log"));
    return 0;
}
