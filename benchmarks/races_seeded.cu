/* Programs with and without races between copies and the host, by name; a kernel of theirs counts the wrong bytes.
 *
 * nvcc -O2 -std=c++17 -arch=native -o races_seeded races_seeded.cu -lcuda
 * races_seeded --list prints the name of each, and what `intertoken races` should say of it; races_seeded NAME runs it.
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t error_ = (call);                                                    \
        if (error_ != cudaSuccess) {                                                    \
            fprintf(stderr, "%s, line %d: %s\n", #call, __LINE__, cudaGetErrorString(error_)); \
            exit(3);                                                                    \
        }                                                                               \
    } while (0)
#define CHECK_DRIVER(call)                                                              \
    do {                                                                                \
        CUresult error_ = (call);                                                       \
        if (error_ != CUDA_SUCCESS) {                                                   \
            fprintf(stderr, "%s, line %d: %d\n", #call, __LINE__, (int)error_);         \
            exit(3);                                                                    \
        }                                                                               \
    } while (0)

typedef unsigned char Byte;
enum { N = 4096, TIMES = 30, BACKLOG_NS = 100000 };
static const size_t LARGE = (size_t)64 << 20;

static cudaStream_t s, other;
static cudaEvent_t event[3];
static Byte *h, *h2, *d, *d2;
static int *wrong, *sums;

__device__ unsigned long long device_time() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
__global__ void work(unsigned long long ns) {
    for (unsigned long long begun = device_time(); device_time() - begun < ns;) continue;
}
__global__ void check(const Byte *bytes, size_t count, Byte value, int *wrong) {
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    for (size_t i = threadIdx.x; i < count; i += blockDim.x)
        if (((volatile const Byte *)bytes)[i] != value) found = 1;
    __syncthreads();
    if (threadIdx.x == 0 && found) atomicAdd(wrong, 1);
}
__global__ void check_next(const Byte *bytes, size_t count, int *value, int *wrong) { /* of a graph: 0, 1, 2, ... */
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != (Byte)*value) {
            atomicAdd(wrong, 1);
            break;
        }
    ++*value;
}
__global__ void put(Byte *bytes, size_t count, Byte value) {
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) bytes[i] = value;
}
__global__ void sum(const Byte *bytes, size_t count, int *total) {
    int all = 0;
    for (size_t i = 0; i < count; i++) all = all * 31 + bytes[i];
    *total = all;
}
__global__ void hold(volatile int *flag, unsigned long long most_ns, int *late) { /* until the flag is set */
    unsigned long long begun = device_time();
    while (!*flag && device_time() - begun < most_ns) continue;
    if (!*flag && threadIdx.x == 0 && blockIdx.x == 0) *late = 1;
}

static void nap(long us) {
    timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, nullptr);
}
static void spin(long us) {
    timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000 + (now.tv_nsec - begun.tv_nsec) / 1000 < us);
}
static void backlog(cudaStream_t on) { work<<<1, 1, 0, on>>>(BACKLOG_NS); }
static void use(cudaStream_t on, size_t bytes, int value) { check<<<1, 256, 0, on>>>(d, bytes, (Byte)value, wrong); }
static Byte *pinned(size_t bytes, unsigned flags = cudaHostAllocDefault) {
    void *made;
    CHECK(cudaHostAlloc(&made, bytes, flags));
    return (Byte *)made;
}

static void begin() {
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (auto &each : event) CHECK(cudaEventCreateWithFlags(&each, cudaEventDisableTiming));
    h = pinned(LARGE, cudaHostAllocMapped), h2 = pinned(1 << 20, cudaHostAllocMapped);
    CHECK(cudaMalloc(&d, LARGE));
    CHECK(cudaMalloc(&d2, LARGE));
    CHECK(cudaMalloc(&wrong, 4));
    CHECK(cudaMalloc(&sums, 4096));
    CHECK(cudaMemset(wrong, 0, 4));
    CHECK(cudaMemset(d, 0, LARGE));
    CHECK(cudaMemset(sums, 0, 4096));
    work<<<1, 1, 0, s>>>(1), put<<<1, 1, 0, s>>>(d, 0, 0), sum<<<1, 1, 0, s>>>(d, 0, sums); /* load them now */
    check<<<1, 1, 0, s>>>(d, 0, 0, wrong), check_next<<<1, 1, 0, s>>>(d, 0, sums, wrong);
    CHECK(cudaMemset(sums, 0, 4096));
    CHECK(cudaDeviceSynchronize());
}

/* What the program has as its result: how often the device saw wrong bytes. */
static void end() {
    int found = 0;
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&found, wrong, 4, cudaMemcpyDeviceToHost));
    printf("wrong %d of %d\n", found, TIMES);
}

#define SEEDED __attribute__((noinline)) static void

static void at_once(Byte *from, Byte *to, size_t bytes, cudaStream_t on, cudaMemcpyKind kind) {
    for (int i = 0; i < TIMES; i++) {
        memset(from, i, bytes);
        backlog(on);
        CHECK(cudaMemcpyAsync(to, from, bytes, kind, on));
        check<<<1, 256, 0, on>>>(to, bytes, (Byte)i, wrong);
        memset(from, 255 - i, bytes);
    }
    CHECK(cudaStreamSynchronize(on));
}
static const cudaMemcpyKind UP = cudaMemcpyHostToDevice, DOWN = cudaMemcpyDeviceToHost;
SEEDED overwritten_at_once() { at_once(h, d, N, s, UP); }
SEEDED bytes_4() { at_once(h, d, 4, s, UP); }
SEEDED bytes_64() { at_once(h, d, 64, s, UP); }
SEEDED bytes_1k() { at_once(h, d, 1 << 10, s, UP); }
SEEDED bytes_16k() { at_once(h, d, 1 << 14, s, UP); }
SEEDED bytes_1m() { at_once(h, d, 1 << 20, s, UP); }
SEEDED bytes_16m() { at_once(h, d, 1 << 24, s, UP); }
SEEDED legacy_stream() { at_once(h, d, N, cudaStreamLegacy, UP); }
SEEDED per_thread_stream() { at_once(h, d, N, cudaStreamPerThread, UP); }
SEEDED default_kind() { at_once(h, d, N, s, cudaMemcpyDefault); }
SEEDED unaligned() { at_once(h + 3, d + 1, 4093, s, UP); }
SEEDED write_combined() { at_once(pinned(N, cudaHostAllocWriteCombined), d, N, s, UP); }
SEEDED registered() {
    Byte *p = (Byte *)aligned_alloc(4096, N);
    CHECK(cudaHostRegister(p, N, 0));
    at_once(p, d, N, s, UP);
    CHECK(cudaHostUnregister(p));
}
SEEDED portable() { at_once(pinned(N, cudaHostAllocPortable), d, N, s, UP); }

/* Won by luck: the host is slow enough. */
static void late(long us) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
        spin(us);
    }
}
SEEDED overwritten_after_100us() { late(100); }
SEEDED overwritten_after_400us() { late(400); }
SEEDED overwritten_after_3ms() { late(3000); } /* beyond the delays by default */

SEEDED wrong_event() {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        CHECK(cudaEventRecord(event[0], other));
        use(s, N, i);
        CHECK(cudaEventSynchronize(event[0]));
    }
}
SEEDED early_event() {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        CHECK(cudaEventRecord(event[0], s));
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
        CHECK(cudaEventSynchronize(event[0]));
    }
}
SEEDED one_buffer_two_events() {
    for (int i = 0; i < TIMES; i++) {
        if (i > 1) CHECK(cudaEventSynchronize(event[i & 1]));
        memset(h, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        CHECK(cudaEventRecord(event[i & 1], s));
        use(s, N, i);
    }
}
SEEDED two_buffers_three_events() {
    for (int i = 0; i < TIMES; i++) {
        Byte *from = i & 1 ? h2 : h;
        if (i > 2) CHECK(cudaEventSynchronize(event[i % 3]));
        memset(from, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, from, N, UP, s));
        CHECK(cudaEventRecord(event[i % 3], s));
        use(s, N, i);
    }
}
static pthread_barrier_t turn;
static void *overwrites(void *) {
    for (int i = 0; i < TIMES; i++) {
        pthread_barrier_wait(&turn); /* the copy is enqueued */
        memset(h, 255 - i, N);
        pthread_barrier_wait(&turn);
    }
    return nullptr;
}
SEEDED other_thread_overwrites() {
    pthread_t thread;
    pthread_barrier_init(&turn, nullptr, 2);
    pthread_create(&thread, nullptr, overwrites, nullptr);
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
        pthread_barrier_wait(&turn);
        pthread_barrier_wait(&turn);
    }
    pthread_join(thread, nullptr);
}
static void copy_batch(int order) {
    for (int i = 0; i < TIMES; i++) {
        void *to[2] = {d, d + N / 2};
        const void *from[2] = {h, h + N / 2};
        size_t sizes[2] = {N / 2, N / 2}, index = 0;
        cudaMemcpyAttributes attributes = {};
        attributes.srcAccessOrder = (cudaMemcpySrcAccessOrder)order;
        memset(h, i, N);
        backlog(s);
#if CUDART_VERSION >= 13000
        CHECK(cudaMemcpyBatchAsync(to, from, sizes, 2, &attributes, &index, 1, s));
#else
        size_t failed;
        CHECK(cudaMemcpyBatchAsync(to, (void **)from, sizes, 2, &attributes, &index, 1, &failed, s));
#endif
        use(s, N, i);
        memset(h, 255 - i, N);
    }
}
SEEDED batch() { copy_batch(cudaMemcpySrcAccessOrderStream); }
SEEDED batch_during_call() { copy_batch(cudaMemcpySrcAccessOrderDuringApiCall); }
static void copy_rows(int waits) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, 2 * N);
        backlog(s);
        CHECK(cudaMemcpy2DAsync(d, 256, h, 512, 256, 16, UP, s));
        use(s, N, i);
        if (waits) CHECK(cudaStreamSynchronize(s));
        memset(h, 255 - i, 2 * N);
    }
}
SEEDED rows_2d() { copy_rows(0); }
SEEDED rows_2d_synced() { copy_rows(1); }
SEEDED planes_3d() {
    cudaMemcpy3DParms c = {};
    c.srcPtr = make_cudaPitchedPtr(h, 64, 64, 8), c.dstPtr = make_cudaPitchedPtr(d, 64, 64, 8);
    c.extent = make_cudaExtent(64, 8, 8), c.kind = UP;
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(s);
        CHECK(cudaMemcpy3DAsync(&c, s));
        use(s, N, i);
        memset(h, 255 - i, N);
    }
}
SEEDED large() {
    for (int i = 0; i < 8; i++) {
        memset(h, i, LARGE);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, LARGE, UP, s));
        use(s, N, i);
        memset(h, 255 - i, LARGE);
        CHECK(cudaStreamSynchronize(s));
    }
}
SEEDED large_between_samples() {
    for (int i = 0; i < 8; i++) {
        memset(h, 7, LARGE);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, LARGE, UP, s));
        check<<<1, 256, 0, s>>>(d + LARGE / 31 + N, 64, 7, wrong);
        memset(h + LARGE / 31 + N, i, 64);
        CHECK(cudaStreamSynchronize(s));
    }
}
SEEDED second_context() {
    CUcontext made;
    CUdevice device;
    cudaStream_t on;
    Byte *to;
    int *its_wrong, found = 0;
    CHECK_DRIVER(cuDeviceGet(&device, 0));
#if CUDA_VERSION >= 13000
    CHECK_DRIVER(cuCtxCreate(&made, nullptr, 0, device));
#else
    CHECK_DRIVER(cuCtxCreate(&made, 0, device));
#endif
    CHECK(cudaStreamCreateWithFlags(&on, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&to, N));
    CHECK(cudaMalloc(&its_wrong, 4));
    CHECK(cudaMemset(its_wrong, 0, 4));
    Byte *from = pinned(N, cudaHostAllocPortable);
    for (int i = 0; i < TIMES; i++) {
        memset(from, i, N);
        backlog(on);
        CHECK(cudaMemcpyAsync(to, from, N, UP, on));
        check<<<1, 256, 0, on>>>(to, N, (Byte)i, its_wrong);
        memset(from, 255 - i, N);
    }
    CHECK(cudaStreamSynchronize(on));
    CHECK(cudaMemcpy(&found, its_wrong, 4, DOWN));
    printf("wrong %d in the second context\n", found);
    CHECK_DRIVER(cuCtxDestroy(made));
    CHECK(cudaSetDevice(0));
}
static const char *own_path;
SEEDED in_a_child() {
    pid_t child = fork();
    if (!child) execl(own_path, own_path, "overwritten_at_once", (char *)nullptr), _exit(127);
    waitpid(child, nullptr, 0);
    begin();
}
SEEDED killed() {
    overwritten_at_once();
    kill(getpid(), SIGKILL);
}

/* Shown by results alone. */
SEEDED read_early() {
    volatile int *result = (volatile int *)h2;
    for (int i = 0; i < TIMES; i++) {
        memset(h, (int)(*result >> 8) + i, N);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        CHECK(cudaStreamSynchronize(s));
        sum<<<1, 1, 0, s>>>(d, 64, sums);
        CHECK(cudaMemcpyAsync((void *)result, sums, 4, DOWN, s));
        spin(300);
    }
}
SEEDED copy_overtakes_reader() { /* the kernel reads on one stream what a copy on the other overwrites */
    for (int i = 0; i < TIMES; i++) {
        Byte *next = h2 + (i & 63) * N;
        memset(h, i, N), memset(next, i + 1, N);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        CHECK(cudaStreamSynchronize(s));
        use(s, N, i);
        spin(100);
        CHECK(cudaMemcpyAsync(d, next, N, UP, other));
        CHECK(cudaStreamSynchronize(other));
        CHECK(cudaStreamSynchronize(s));
    }
}
SEEDED reader_without_event() { /* the kernel on the other stream does not wait for the copy */
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        spin(100);
        use(other, N, i);
        CHECK(cudaStreamSynchronize(other));
        CHECK(cudaStreamSynchronize(s));
    }
}
SEEDED kernel_overwrites_destination() {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
        spin(200);
        put<<<1, 256, 0, other>>>(d, N, (Byte)(255 - i));
        CHECK(cudaStreamSynchronize(s));
        CHECK(cudaStreamSynchronize(other));
    }
}

/* In order. */
SEEDED synced() {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
        CHECK(cudaStreamSynchronize(s));
    }
}
SEEDED device_synced() {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
        CHECK(cudaDeviceSynchronize());
    }
}
SEEDED double_buffer() {
    for (int i = 0; i < TIMES; i++) {
        Byte *from = i & 1 ? h2 : h;
        if (i > 1) CHECK(cudaEventSynchronize(event[i & 1]));
        memset(from, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, from, N, UP, s));
        CHECK(cudaEventRecord(event[i & 1], s));
        use(s, N, i);
    }
}
SEEDED event_polled() {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        CHECK(cudaEventRecord(event[0], s));
        use(s, N, i);
        while (cudaEventQuery(event[0]) == cudaErrorNotReady) continue;
    }
}
SEEDED event_of_a_later_stream() { /* the other stream waits for the copy, and the host for the other stream */
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
        CHECK(cudaEventRecord(event[0], s));
        CHECK(cudaStreamWaitEvent(other, event[0], 0));
        CHECK(cudaStreamSynchronize(other));
    }
}
SEEDED unaligned_synced() {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, 5000);
        CHECK(cudaMemcpyAsync(d + 1, h + 3, 4093, UP, s));
        check<<<1, 256, 0, s>>>(d + 1, 4093, (Byte)i, wrong);
        CHECK(cudaStreamSynchronize(s));
    }
}
SEEDED same_bytes() {
    for (int i = 0; i < TIMES; i++) {
        memset(h, 7, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, 7);
        memset(h, 7, N);
    }
}
SEEDED ring_of_buffers() {
    for (int i = 0; i < TIMES; i++) {
        memset(h + i * N, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, h + i * N, N, UP, s));
        use(s, N, i);
    }
}
static void *a_thread(void *given) {
    size_t at = (size_t)given;
    for (int i = 0; i < TIMES; i++) {
        memset(h + at, i, N);
        CHECK(cudaMemcpyAsync(d + at, h + at, N, UP, s));
        check<<<1, 256, 0, s>>>(d + at, N, (Byte)i, wrong);
        put<<<1, 256, 0, s>>>(d + at, N, 0);
        CHECK(cudaStreamSynchronize(s));
    }
    return nullptr;
}
SEEDED two_threads() {
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) pthread_create(&threads[i], nullptr, a_thread, (void *)(i * N));
    for (auto each : threads) pthread_join(each, nullptr);
}
SEEDED freed_after() {
    for (int i = 0; i < TIMES; i++) {
        Byte *p = pinned(N);
        memset(p, i, N);
        CHECK(cudaMemcpyAsync(d, p, N, UP, s));
        use(s, N, i);
        CHECK(cudaStreamSynchronize(s));
        CHECK(cudaFreeHost(p));
    }
}
SEEDED freed_in_flight() {
    for (int i = 0; i < TIMES; i++) {
        Byte *p = pinned(N);
        memset(p, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, p, N, UP, s));
        use(s, N, i);
        CHECK(cudaFreeHost(p));
    }
}
SEEDED unregistered_in_flight() {
    Byte *p = (Byte *)aligned_alloc(4096, N);
    for (int i = 0; i < TIMES; i++) {
        CHECK(cudaHostRegister(p, N, 0));
        memset(p, i, N);
        backlog(s);
        CHECK(cudaMemcpyAsync(d, p, N, UP, s));
        use(s, N, i);
        CHECK(cudaHostUnregister(p));
        CHECK(cudaStreamSynchronize(s));
    }
}
static void *captures(void *refused) {
    cudaStream_t on;
    cudaGraph_t graph;
    CHECK(cudaStreamCreateWithFlags(&on, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 200; i++) work<<<1, 1, 0, on>>>(100), nap(100);
    *(int *)refused = cudaStreamEndCapture(on, &graph);
    return nullptr;
}
SEEDED capture_beside() {
    pthread_t thread;
    int refused = -1;
    pthread_create(&thread, nullptr, captures, &refused);
    nap(3000);
    for (int i = 0; i < TIMES; i++) {
        memset(h + i * N, i, N);
        CHECK(cudaMemcpyAsync(d, h + i * N, N, UP, s));
        use(s, N, i);
        spin(300);
    }
    pthread_join(thread, nullptr);
    printf("capture %d\n", refused);
}
SEEDED persistent_kernel() { /* fills the device, and ends when a copy on the other stream has come */
    cudaDeviceProp about;
    int *flag, *late, *one = (int *)h2, was_late = 0;
    CHECK(cudaGetDeviceProperties(&about, 0));
    CHECK(cudaMalloc(&flag, 4));
    CHECK(cudaMalloc(&late, 4));
    CHECK(cudaMemset(flag, 0, 4));
    CHECK(cudaMemset(late, 0, 4));
    *one = 1;
    CHECK(cudaDeviceSynchronize());
    hold<<<about.multiProcessorCount * 2, 1024, 0, s>>>(flag, 300000000ull, late);
    CHECK(cudaMemcpyAsync(flag, one, 4, UP, other));
    CHECK(cudaStreamSynchronize(other));
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaMemcpy(&was_late, late, 4, DOWN));
    printf("late %d\n", was_late);
}

/* Copies that cannot race, or cannot be watched. */
static void unpinned(size_t bytes) {
    Byte *p = (Byte *)malloc(bytes);
    at_once(p, d, bytes, s, UP);
    free(p);
}
SEEDED pageable() { unpinned(N); }
SEEDED pageable_1m() { unpinned(1 << 20); }
SEEDED managed() {
    Byte *m;
    CHECK(cudaMallocManaged(&m, N));
    for (int i = 0; i < TIMES; i++) {
        memset(m, i, N);
        CHECK(cudaMemcpyAsync(d, m, N, UP, s));
        use(s, N, i);
        CHECK(cudaStreamSynchronize(s));
    }
}

/* Legal orders in which the source changes after the call. */
SEEDED result_is_sent() {
    for (int i = 0; i < TIMES; i++) {
        put<<<1, 256, 0, s>>>(d2, N, (Byte)i);
        CHECK(cudaMemcpyAsync(h, d2, N, DOWN, s));
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
    }
}
SEEDED kernel_fills_source() {
    for (int i = 0; i < TIMES; i++) {
        put<<<1, 256, 0, s>>>(h, N, (Byte)i);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
    }
}
SEEDED other_stream_fills_source() {
    for (int i = 0; i < TIMES; i++) {
        CHECK(cudaEventRecord(event[1], s));
        CHECK(cudaStreamWaitEvent(other, event[1], 0));
        put<<<1, 256, 0, other>>>(h, N, (Byte)i);
        CHECK(cudaEventRecord(event[0], other));
        CHECK(cudaStreamWaitEvent(s, event[0], 0));
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
    }
}
static int filled;
static void CUDART_CB fill(void *) { memset(h, filled++, N); }
SEEDED host_function_fills_source() {
    for (int i = 0; i < TIMES; i++) {
        CHECK(cudaLaunchHostFunc(s, fill, nullptr));
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
    }
}
SEEDED gated() {
    volatile uint32_t *gate = (volatile uint32_t *)h2;
    CUdeviceptr seen;
    CHECK_DRIVER(cuMemHostGetDevicePointer(&seen, h2, 0));
    *gate = 0;
    for (int i = 0; i < TIMES; i++) {
        CHECK_DRIVER(cuStreamWaitValue32((CUstream)s, seen, (uint32_t)i + 1, CU_STREAM_WAIT_VALUE_GEQ));
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        use(s, N, i);
        memset(h, i, N);
        __sync_synchronize();
        *gate = (uint32_t)i + 1;
        CHECK(cudaStreamSynchronize(s));
    }
}

/* Graphs. */
static void graph(int waits, int fills) {
    cudaGraph_t g;
    cudaGraphExec_t x;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    backlog(s);
    if (fills) CHECK(cudaLaunchHostFunc(s, fill, nullptr));
    CHECK(cudaMemcpyAsync(d, h, N, UP, s));
    check_next<<<1, 1, 0, s>>>(d, 64, sums, wrong);
    CHECK(cudaStreamEndCapture(s, &g));
    CHECK(cudaGraphInstantiate(&x, g, 0));
    for (int i = 0; i < TIMES; i++) {
        if (!fills) memset(h, i, N);
        CHECK(cudaGraphLaunch(x, s));
        if (waits) CHECK(cudaStreamSynchronize(s));
    }
}
SEEDED graph_race() { graph(0, 0); }
SEEDED graph_synced() { graph(1, 0); }
SEEDED graph_fills_source() { graph(0, 1); }
SEEDED step_of_a_decode_loop() { /* copies, a graph, a result; no wait between the last copy and the next step's fill */
    cudaGraph_t g;
    cudaGraphExec_t x;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    backlog(s);
    sum<<<1, 1, 0, s>>>(d, 64, sums);
    CHECK(cudaStreamEndCapture(s, &g));
    CHECK(cudaGraphInstantiate(&x, g, 0));
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        CHECK(cudaMemcpyAsync(d, h, N, UP, s));
        CHECK(cudaMemcpyAsync(d + N, h + N, 256, UP, s));
        CHECK(cudaGraphLaunch(x, s));
        use(s, N, i);
        spin(150); /* the graph takes 100 µs: clean without delays */
    }
}

struct Program {
    const char *name, *expected;
    void (*run)();
};
#define X(expected, name) {#name, expected, name},
static const Program programs[] = {
    X("race", overwritten_at_once) X("race", bytes_4) X("race", bytes_64) X("race", bytes_1k) X("race", bytes_16k)
    X("race", bytes_1m) X("race", bytes_16m) X("race", legacy_stream) X("race", per_thread_stream)
    X("race", default_kind) X("race", unaligned) X("race", write_combined) X("race", registered) X("race", portable)
    X("race", overwritten_after_100us) X("race", overwritten_after_400us) X("missed", overwritten_after_3ms)
    X("race", wrong_event) X("race", early_event) X("race", one_buffer_two_events) X("race", two_buffers_three_events)
    X("race", other_thread_overwrites) X("race", batch) X("race", rows_2d) X("race", planes_3d) X("race", large)
    X("race", large_between_samples) X("race", second_context) X("race", in_a_child) X("race", killed)
    X("race", read_early) X("race", copy_overtakes_reader) X("race", reader_without_event)
    X("race", kernel_overwrites_destination) X("race", step_of_a_decode_loop)
    X("clean", synced) X("clean", device_synced) X("clean", double_buffer) X("clean", event_polled)
    X("clean", event_of_a_later_stream) X("clean", unaligned_synced) X("clean", same_bytes) X("clean", ring_of_buffers)
    X("clean", two_threads) X("clean", rows_2d_synced) X("clean", freed_after) X("clean", capture_beside)
    X("clean", persistent_kernel) X("freed", freed_in_flight) X("freed", unregistered_in_flight)
    X("not seen", batch_during_call) X("not seen", pageable) X("not seen", pageable_1m) X("not seen", managed)
    X("ordered by design", result_is_sent) X("ordered by design", kernel_fills_source)
    X("ordered by design", other_stream_fills_source) X("ordered by design", host_function_fills_source)
    X("ordered by design", gated)
    X("not seen", graph_race) X("not seen", graph_synced) X("not seen", graph_fills_source)
};

int main(int count, char **arguments) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    own_path = arguments[0];
    if (count == 2 && strcmp(arguments[1], "--list") == 0) {
        for (const Program &each : programs) printf("%s\t%s\n", each.name, each.expected);
        return 0;
    }
    for (const Program &each : programs)
        if (count == 2 && strcmp(each.name, arguments[1]) == 0) {
            if (each.run != in_a_child) begin();
            each.run();
            end();
            return 0;
        }
    fprintf(stderr, "races_seeded --list, or races_seeded NAME\n");
    return 2;
}
