/* A program that decodes with the calls of `fake.c`: a copy, a sync, a graph, a kernel and a sync for each token.
 *
 * argv[1] says what else it does, argv[2] how many tokens there are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int (*init)(unsigned), (*launch)(const char *), (*graph)(void *, void *), (*wait_for)(void *);
static int (*copy)(uint64_t, const void *, size_t, void *), (*device_of)(int *), (*start)(void), (*stop)(void);
static void (*emptied)(void), *driver;
static int tokens;

static void load(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) puts(dlerror()), exit(2);
    init = dlsym(driver, "cuInit"), launch = dlsym(driver, "cuLaunchKernel"), graph = dlsym(driver, "cuGraphLaunch");
    wait_for = dlsym(driver, "cuStreamSynchronize"), copy = dlsym(driver, "cuMemcpyHtoDAsync_v2");
    device_of = dlsym(driver, "cuCtxGetDevice"), start = dlsym(driver, "cuProfilerStart");
    stop = dlsym(driver, "cuProfilerStop"), emptied = dlsym(driver, "fakeEmptied");
    init(0);
}

static void *decode(void *none) {
    char input[16] = "";
    int device;
    for (int i = 0; i < tokens; i++) {
        device_of(&device);
        copy(0, input, sizeof input, NULL), wait_for(NULL), graph(NULL, NULL), launch("_Z6samplePfi"), wait_for(NULL);
    }
    return none;
}

static void handler(int number) { _exit(40 + number); }
static void give(uint8_t **buffer, size_t *size, size_t *most) { *buffer = malloc(*size = 1 << 16), *most = 0; }
static void take(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    tokens = argc > 2 ? atoi(argv[2]) : 3;
    if (strcmp(what, "none") == 0) return 0;
    if (strcmp(what, "forks early") == 0 && fork() != 0) return wait(NULL), load(), decode(NULL), 0;
    load();
    if (strcmp(what, "profiles") == 0) { /* as torch.profiler does */
        decode(NULL);
        ((int (*)(void *, void *))dlsym(driver, "cuptiActivityRegisterCallbacks"))(give, take);
    }
    if (strcmp(what, "window") == 0) decode(NULL), start();
    decode(NULL);
    if (strcmp(what, "window") == 0) stop(), decode(NULL);
    if (strcmp(what, "threads") == 0) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, decode, NULL);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    }
    if (strcmp(what, "forks") == 0) {
        if (fork() == 0) exit(5); /* a child that does nothing runs the exit handlers of its parent */
        wait(NULL);
    }
    if (strcmp(what, "execs") == 0) {
        if (fork() == 0) execl(argv[0], argv[0], "", argv[2], NULL);
        wait(NULL);
    }
    if (strcmp(what, "becomes") == 0) emptied(), execl(argv[0], argv[0], "", argv[2], NULL);
    if (strcmp(what, "left") == 0) _exit(3);
    if (strcmp(what, "Left") == 0) _Exit(4);
    if (strcmp(what, "killed") == 0) emptied(), kill(getpid(), SIGKILL);
    if (strcmp(what, "crashed") == 0) emptied(), abort();
    if (strcmp(what, "handles") == 0) signal(SIGTERM, handler), kill(getpid(), SIGTERM), pause();
    if (strcmp(what, "waits") == 0) emptied(), puts("ready"), fflush(stdout), pause();
    return 0;
}
