/* Stands for libcuda and libcupti at once: what a program launches comes out as activity records of CUPTI 13.0.1.
 *
 * Only what our recorder calls, and cuLaunchKernel. Sizes and offsets are those of tracer/recorders/cupti_layout.py.
 */
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>

enum { DRIVER = 4, KERNEL = 10, DRIVER_SIZE = 40, KERNEL_SIZE = 216, LAUNCH_KERNEL = 307 };

typedef void (*Request)(uint8_t **buffer, size_t *size, size_t *most);
typedef void (*Complete)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

static Request request;
static Complete complete;
static char enabled[256];
static uint8_t *buffer;
static size_t size, valid, dropped;
static uint32_t correlation;
static char used;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void give_back(void) {
    if (buffer) complete(0, 0, buffer, size, valid);
    buffer = 0;
    size = valid = 0;
}

static uint8_t *record(uint32_t kind, size_t bytes) {
    size_t most;
    if (!enabled[kind]) return 0;
    if (buffer && valid + bytes > size) give_back();
    if (!buffer) request(&buffer, &size, &most);
    if (!buffer) return dropped++, (uint8_t *)0;
    uint8_t *at = buffer + valid;
    valid += bytes;
    memcpy(at, &kind, 4);
    return at;
}

#define PUT(at, offset, type, value) (*(type *)((at) + (offset)) = (type)(value))

/* libcuda */
int cuInit(unsigned flags) { return used = 1, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *flags = 0, *active = used, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &used, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxPushCurrent_v2(void *context) { return 0; }
int cuCtxPopCurrent_v2(void **context) { return 0; }
int cuCtxGetCurrent(void **context) { return *context = 0, 0; }
int cuCtxSynchronize(void) { return 0; }

int cuLaunchKernel(const char *name) {
    uint64_t start = now(), end = now() + 1;
    uint8_t *at = record(DRIVER, DRIVER_SIZE);
    correlation++;
    if (at) {
        PUT(at, 4, uint32_t, LAUNCH_KERNEL), PUT(at, 8, uint64_t, start), PUT(at, 16, uint64_t, end);
        PUT(at, 24, uint32_t, getpid()), PUT(at, 28, uint32_t, syscall(SYS_gettid)), PUT(at, 32, uint32_t, correlation);
    }
    if ((at = record(KERNEL, KERNEL_SIZE))) {
        PUT(at, 16, uint64_t, end), PUT(at, 24, uint64_t, end + 1000), PUT(at, 44, uint32_t, 1), PUT(at, 48, uint32_t, 7);
        PUT(at, 92, uint32_t, correlation), PUT(at, 104, const char *, strdup(name));
    }
    return 0;
}

/* libcupti */
int cuptiGetVersion(uint32_t *version) { return *version = 130001, 0; }
int cuptiActivityEnable(int kind) { return enabled[kind] = 1, 0; }
int cuptiActivityEnableAndDump(int kind) { return enabled[kind] = 1, 0; }
int cuptiActivityDisable(int kind) { return enabled[kind] = 0, 0; }
int cuptiActivityRegisterCallbacks(Request give, Complete take) { return request = give, complete = take, 0; }
int cuptiActivityFlushAll(uint32_t flag) { return give_back(), 0; }
int cuptiActivitySetAttribute(int attribute, size_t *bytes, void *value) { return 0; }
int cuptiSetThreadIdType(int type) { return 0; }
int cuptiFinalize(void) { return 0; }
int cuptiGetResultString(int code, const char **text) { return *text = "FAKE", 0; }

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    *count = dropped;
    return dropped = 0, 0;
}

int cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
    *name = id == LAUNCH_KERNEL ? "cuLaunchKernel" : "INVALID";
    return 0;
}
