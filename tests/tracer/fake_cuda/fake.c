/* Stands for libcuda and libcupti at once: what a program launches comes out as activity records of CUPTI 13.0.1.
 *
 * Only what our recorders call, and a few calls for programs: a kernel by its name, a graph of three kernels, a copy and
 * a sync. Sizes and offsets are those of tracer/recorders/cupti_records.py. FAKE_* in the environment makes things fail:
 * FAKE_REFUSES, a kind of activity; FAKE_VERSION is another version of CUPTI; FAKE_GROWN, by how many bytes its records
 * are longer; FAKE_HUNG never returns from a flush.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>

enum { MEMCPY = 1, DRIVER = 4, DEVICE = 8, KERNEL = 10, SYNCHRONIZATION = 38, GRAPH_TRACE = 51 };
enum { COPY = 276, LAUNCH_KERNEL = 307, PROFILER_START = 308, PROFILER_STOP = 309, GRAPH_LAUNCH = 514, SYNC = 126,
       GET_DEVICE = 16 };
static const size_t sizes[64] = {[MEMCPY] = 96, [DRIVER] = 40, [DEVICE] = 184, [KERNEL] = 216, [SYNCHRONIZATION] = 56,
                                 [GRAPH_TRACE] = 56};

typedef void (*Request)(uint8_t **buffer, size_t *size, size_t *most);
typedef void (*Complete)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

static Request request;
static Complete complete;
static char enabled[256], skipped[1024];
static uint8_t *buffer;
static size_t size, valid, dropped;
static uint32_t correlation;
static char used;
static pthread_mutex_t lock;
static pthread_cond_t emptied = PTHREAD_COND_INITIALIZER;
__attribute__((constructor)) static void begin(void) {
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &recursive);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void give_back(void) {
    if (buffer) complete(0, 0, buffer, size, valid);
    buffer = 0;
    size = valid = 0;
    pthread_cond_broadcast(&emptied);
}

static size_t bytes_of(uint32_t kind) { return sizes[kind] + (getenv("FAKE_GROWN") ? atoi(getenv("FAKE_GROWN")) : 0); }

static uint8_t *record(uint32_t kind) {
    size_t most, bytes = bytes_of(kind);
    if (!enabled[kind] || !request) return 0;
    if (buffer && valid + bytes > size) give_back();
    if (!buffer) request(&buffer, &size, &most);
    if (!buffer) return dropped++, (uint8_t *)0;
    uint8_t *at = buffer + valid;
    valid += bytes;
    memcpy(at, &kind, 4);
    return at;
}

#define PUT(at, offset, type, value) (*(type *)((at) + (offset)) = (type)(value))

static void called(uint32_t id, uint64_t start) {
    uint8_t *at = skipped[id] ? 0 : record(DRIVER);
    if (!at) return;
    PUT(at, 4, uint32_t, id), PUT(at, 8, uint64_t, start), PUT(at, 16, uint64_t, now());
    PUT(at, 24, uint32_t, getpid()), PUT(at, 28, uint32_t, syscall(SYS_gettid)), PUT(at, 32, uint32_t, correlation);
}

static void kernel(const char *name, uint64_t start, uint32_t node) {
    uint8_t *at = record(KERNEL);
    if (!at) return;
    PUT(at, 16, uint64_t, start), PUT(at, 24, uint64_t, start + 1000), PUT(at, 44, uint32_t, 1);
    PUT(at, 48, uint32_t, 7), PUT(at, 92, uint32_t, correlation), PUT(at, 104, const char *, name);
    if (node) PUT(at, 144, uint64_t, node), PUT(at, 156, uint32_t, 3);
}

#define CALL(id, ...)                                                                                                 \
    do {                                                                                                              \
        uint64_t start = now();                                                                                       \
        pthread_mutex_lock(&lock);                                                                                    \
        correlation++;                                                                                                \
        called(id, start);                                                                                            \
        __VA_ARGS__;                                                                                                  \
        pthread_mutex_unlock(&lock);                                                                                  \
    } while (0)

/* libcuda */
int cuInit(unsigned flags) {
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *injected = path && !used ? dlopen(path, RTLD_NOW) : 0;
    int (*initialize)(void) = injected ? dlsym(injected, "InitializeInjection") : 0;
    if (initialize && initialize() != 1) return 999;
    if (!used) {
        const char *seen = getenv("CUDA_VISIBLE_DEVICES"); /* one of the machine's two; CUPTI describes the other, too */
        for (uint32_t device = 0; device < 2; device++) {
            uint64_t gpu = (seen ? atoi(seen) : 0) ^ device;
            uint8_t *at = record(DEVICE);
            if (!at) continue;
            PUT(at, 112, uint32_t, device), PUT(at, 120, uint64_t, 1), PUT(at, 128, uint64_t, gpu);
            PUT(at, 136, const char *, "Fake GPU"), PUT(at, 144, uint8_t, !device);
        }
    }
    return used = 1, 0;
}
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *flags = 0, *active = used, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &used, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxPushCurrent_v2(void *context) { return 0; }
int cuCtxPopCurrent_v2(void **context) { return 0; }
int cuCtxGetCurrent(void **context) { return *context = 0, 0; }
int cuCtxGetDevice(int *device) {
    CALL(GET_DEVICE, );
    return *device = 0, 0;
}
int cuCtxSynchronize(void) { return 0; }

int cuLaunchKernel(const char *name) {
    CALL(LAUNCH_KERNEL, kernel(strdup(name), now(), 0));
    return 0;
}

/* A graph of three kernels, which take 1 us each. */
int cuGraphLaunch(void *graph, void *stream) {
    static const char *const names[] = {"norm", "gemv", "add"};
    CALL(GRAPH_LAUNCH, {
        uint8_t *at = record(GRAPH_TRACE);
        uint64_t from = now();
        if (at) {
            PUT(at, 4, uint32_t, correlation), PUT(at, 8, uint64_t, from), PUT(at, 16, uint64_t, from + 3000);
            PUT(at, 28, uint32_t, 3), PUT(at, 32, uint32_t, 1), PUT(at, 36, uint32_t, 7);
        }
        for (int i = 0; i < 3 && !at; i++) kernel(names[i], from + 1000 * i, i + 1);
    });
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    CALL(COPY, {
        uint8_t *at = record(MEMCPY);
        if (at) {
            PUT(at, 4, uint8_t, 1), PUT(at, 5, uint8_t, 1), PUT(at, 6, uint8_t, 3), PUT(at, 8, uint64_t, bytes);
            PUT(at, 16, uint64_t, now()), PUT(at, 24, uint64_t, now() + 500), PUT(at, 36, uint32_t, 1);
            PUT(at, 40, uint32_t, 7), PUT(at, 44, uint32_t, correlation);
        }
    });
    return 0;
}

int cuStreamSynchronize(void *stream) {
    uint64_t since = now();
    usleep(20);
    CALL(SYNC, {
        uint8_t *at = record(SYNCHRONIZATION);
        if (at) {
            PUT(at, 4, uint32_t, 3), PUT(at, 8, uint64_t, since), PUT(at, 16, uint64_t, now());
            PUT(at, 24, uint32_t, correlation), PUT(at, 28, uint32_t, 1), PUT(at, 32, uint32_t, 7);
        }
    });
    return 0;
}

int cuProfilerStart(void) {
    CALL(PROFILER_START, );
    return 0;
}
int cuProfilerStop(void) {
    CALL(PROFILER_STOP, );
    return 0;
}

/* libcupti */
int cuptiGetVersion(uint32_t *version) {
    return *version = getenv("FAKE_VERSION") ? atoi(getenv("FAKE_VERSION")) : 130001, 0;
}
int cuptiActivityGetStructSize(int kind, uint32_t version, size_t *bytes) {
    return *bytes = bytes_of(kind), !sizes[kind] || !getenv("FAKE_GROWN");
}
int cuptiActivityEnable(int kind) {
    if (getenv("FAKE_REFUSES") && kind == atoi(getenv("FAKE_REFUSES"))) return 35;
    return enabled[kind] = 1, 0;
}
int cuptiActivityEnableAndDump(int kind) { return enabled[kind] = 1, 0; }
int cuptiActivityDisable(int kind) { return enabled[kind] = 0, 0; }
int cuptiActivityEnableDriverApi(uint32_t id, uint8_t enable) { return skipped[id] = !enable, 0; }
int cuptiActivityEnableRuntimeApi(uint32_t id, uint8_t enable) { return 0; }
int cuptiActivityRegisterCallbacks(Request give, Complete take) { return request = give, complete = take, 0; }
int cuptiActivitySetAttribute(int attribute, size_t *bytes, void *value) { return 0; }
int cuptiSetThreadIdType(int type) { return 0; }
int cuptiFinalize(void) { return 0; }
int cuptiSubscribe(void **subscriber, void *callback, void *user) { return *subscriber = &used, 0; }
int cuptiUnsubscribe(void *subscriber) { return 0; }
int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t id) { return 0; }
int cuptiGetResultString(int code, const char **text) { return *text = "FAKE", 0; }

int cuptiActivityFlushAll(uint32_t flag) {
    while (getenv("FAKE_HUNG")) pause();
    pthread_mutex_lock(&lock);
    give_back();
    pthread_mutex_unlock(&lock);
    return 0;
}

/* For programs: wait until a flush has taken all records. */
void fakeEmptied(void) {
    pthread_mutex_lock(&lock);
    while (buffer) pthread_cond_wait(&emptied, &lock);
    pthread_mutex_unlock(&lock);
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record) {
    uint8_t *next = *record ? (uint8_t *)*record + bytes_of(*(uint32_t *)*record) : buffer;
    if (next >= buffer + valid) return 14;
    return *record = next, 0;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    pthread_mutex_lock(&lock);
    *count = dropped;
    dropped = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
    static const char *const names[1024] = {
        [COPY] = "cuMemcpyHtoDAsync_v2", [LAUNCH_KERNEL] = "cuLaunchKernel", [PROFILER_START] = "cuProfilerStart",
        [PROFILER_STOP] = "cuProfilerStop", [GRAPH_LAUNCH] = "cuGraphLaunch", [SYNC] = "cuStreamSynchronize",
        [GET_DEVICE] = "cuCtxGetDevice"};
    if (id >= 1024) return 1;
    if (domain == 2 && id == 211) return *name = "cudaLaunchKernel_v7000", 0;
    *name = domain == 1 && names[id] ? names[id] : "INVALID";
    return 0;
}
