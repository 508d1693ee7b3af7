/* Programs with and without races, by name: seeded NAME. Each prints how often the device saw wrong bytes. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../tracer/recorders/native/calls.h"

enum { N = 4096, TIMES = 12, NON_BLOCKING = 1 };
#define CALL(id, symbol, since, own, params, ...) Result id params;
CALLS
#undef CALL
Result cuMemAlloc_v2(DevicePointer *, size_t);
Result cuMemAllocManaged(DevicePointer *, size_t, unsigned);
Result cuMemHostAlloc(void **, size_t, unsigned);
Result cuMemHostRegister_v2(void *, size_t, unsigned);
Result cuMemFreeHost(void *);
Result cuMemHostUnregister(void *);
Result cuStreamCreate(Stream *, unsigned);
Result cuEventCreate(Event *, unsigned);

static Stream s, other;
static Event event[2];
static unsigned char *h, *h2, *fetched;
static DevicePointer d, d2, wrong_at;
static int *wrong;
static Function work, put, check, sum;

static void nap(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static void launch(Function f, Stream on, uint64_t a, uint64_t b, uint64_t c, uint64_t e) {
    void *p[] = {&a, &b, &c, &e, NULL};
    cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, on, p, NULL);
}

static void *pinned(size_t bytes) {
    void *made;
    cuMemHostAlloc(&made, bytes, 0);
    return made;
}

static void begin(void) {
    cuInit(0);
    cuStreamCreate(&s, NON_BLOCKING), cuStreamCreate(&other, NON_BLOCKING);
    for (int i = 0; i < 2; i++) cuEventCreate(&event[i], 0);
    h = pinned(1 << 20), h2 = pinned(1 << 20), fetched = pinned(N);
    cuMemAlloc_v2(&d, 1 << 20), cuMemAlloc_v2(&d2, 1 << 20), cuMemAlloc_v2(&wrong_at, 64);
    wrong = (int *)(uintptr_t)wrong_at;
    cuModuleGetFunction(&work, NULL, "work"), cuModuleGetFunction(&put, NULL, "put");
    cuModuleGetFunction(&check, NULL, "check"), cuModuleGetFunction(&sum, NULL, "sum");
}

/* What the device does with the bytes; the backlog before them is what lets a race show. */
static void backlog(long us) { launch(work, s, (uint64_t)us, 0, 0, 0); }
static void use(size_t bytes, int value) { launch(check, s, d, bytes, (uint64_t)value, wrong_at); }
static void end(void) {
    cuMemcpyDtoHAsync_v2(fetched, d, N, s);
    cuStreamSynchronize(s);
    printf("wrong %d\n", *wrong);
}

#define SEEDED __attribute__((noinline)) static void

SEEDED overwritten_at_once(void) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(5000);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
        memset(h, 255 - i, N);
    }
}
SEEDED overwritten_late(void) { /* clean unless something takes longer than it usually does */
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
        nap(15000);
    }
}
SEEDED wrong_event(void) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(5000);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        cuEventRecord(event[0], other);
        use(N, i);
        cuEventSynchronize(event[0]);
    }
}
SEEDED early_event(void) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        cuEventRecord(event[0], s);
        backlog(5000);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
        cuEventSynchronize(event[0]);
        memset(h, 255 - i, N);
    }
}
SEEDED double_buffer_event(void) {
    for (int i = 0; i < TIMES; i++) {
        unsigned char *from = i & 1 ? h2 : h;
        if (i > 1) cuEventSynchronize(event[i & 1]);
        memset(from, i, N);
        backlog(200);
        cuMemcpyHtoDAsync_v2(d, from, N, s);
        cuEventRecord(event[i & 1], s);
        use(N, i);
    }
}
SEEDED single_buffer_event_of_two(void) { /* waits for the event of two copies ago, but has one buffer */
    for (int i = 0; i < TIMES; i++) {
        if (i > 1) cuEventSynchronize(event[i & 1]);
        memset(h, i, N);
        backlog(5000);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        cuEventRecord(event[i & 1], s);
        use(N, i);
    }
}
SEEDED synced(void) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(200);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
        cuStreamSynchronize(s);
        memset(h, 255 - i, N);
    }
}
SEEDED polled(void) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
        while (cuStreamQuery(s) == ERROR_NOT_READY) nap(50);
    }
}
SEEDED same_bytes(void) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, 7, N);
        backlog(200);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, 7);
        memset(h, 7, N);
    }
}
SEEDED any_way(void) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        backlog(5000);
        cuMemcpyAsync(d, (uintptr_t)h, N, s);
        use(N, i);
        memset(h, 255 - i, N);
    }
}
static void batches(int order) {
    for (int i = 0; i < TIMES; i++) {
        int attributes[6] = {order};
        DevicePointer to[] = {d, d + N / 2}, from[] = {(uintptr_t)h, (uintptr_t)h + N / 2};
        size_t sizes[] = {N / 2, N / 2}, index = 0;
        memset(h, i, N);
        backlog(5000);
        cuMemcpyBatchAsync(to, from, sizes, 2, attributes, &index, 1, NULL, s);
        use(N, i);
        memset(h, 255 - i, N);
    }
}
SEEDED batch(void) { batches(1); }
SEEDED batch_during_call(void) { batches(2); }
static void rows(int waits) {
    Copy2D c = {.src = {.type = MEMORY_HOST, .host = h, .pitch = 512}, .dst = {.type = MEMORY_DEVICE, .device = d, .pitch = 256},
                .width = 256, .height = 16};
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, 2 * N);
        backlog(5000);
        cuMemcpy2DAsync_v2(&c, s);
        use(N, i);
        if (waits) cuStreamSynchronize(s);
        memset(h, 255 - i, 2 * N);
    }
}
SEEDED rows_2d(void) { rows(0); }
SEEDED rows_2d_synced(void) { rows(1); }
static void planes(size_t more) { /* rows between two planes */
    Copy3D c = {.src = {.type = MEMORY_HOST, .host = h, .pitch = 64, .height = 8 + more},
                .dst = {.type = MEMORY_DEVICE, .device = d, .pitch = 64, .height = 8},
                .width = 64, .height = 8, .depth = 8};
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, 4 * N);
        backlog(5000);
        cuMemcpy3DAsync_v2(&c, s);
        use(N, i);
        memset(h, 255 - i, 4 * N);
    }
}
SEEDED planes_3d(void) { planes(0); }
SEEDED planes_apart(void) { planes(2); }
SEEDED registered(void) {
    unsigned char *p = aligned_alloc(4096, N);
    cuMemHostRegister_v2(p, N, 0);
    for (int i = 0; i < TIMES; i++) {
        memset(p, i, N);
        backlog(5000);
        cuMemcpyHtoDAsync_v2(d, p, N, s);
        use(N, i);
        memset(p, 255 - i, N);
    }
    cuStreamSynchronize(s);
    cuMemHostUnregister(p);
}
SEEDED pageable(void) {
    unsigned char *p = malloc(N);
    for (int i = 0; i < TIMES; i++) {
        memset(p, i, N);
        backlog(200);
        cuMemcpyHtoDAsync_v2(d, p, N, s);
        use(N, i);
        memset(p, 255 - i, N);
    }
}
SEEDED managed(void) {
    DevicePointer m;
    cuMemAllocManaged(&m, N, 1);
    for (int i = 0; i < TIMES; i++) {
        memset((void *)(uintptr_t)m, i, N);
        cuMemcpyHtoDAsync_v2(d, (void *)(uintptr_t)m, N, s);
        cuStreamSynchronize(s);
    }
}
SEEDED own_stream_of_the_thread(void) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        launch(work, (Stream)2, 5000, 0, 0, 0);
        cuMemcpyHtoDAsync_v2_ptsz(d, h, N, NULL);
        launch(check, (Stream)2, d, N, (uint64_t)i, wrong_at);
        memset(h, 255 - i, N);
    }
    cuStreamSynchronize_ptsz(NULL);
}
SEEDED large(void) {
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, 1 << 20);
        backlog(5000);
        cuMemcpyHtoDAsync_v2(d, h, 1 << 20, s);
        use(1 << 20, i);
        memset(h, 255 - i, 1 << 20);
    }
}
SEEDED large_between_samples(void) { /* bytes that no sample holds */
    for (int i = 0; i < TIMES; i++) {
        memset(h, 7, 1 << 20);
        backlog(5000);
        cuMemcpyHtoDAsync_v2(d, h, 1 << 20, s);
        use(1 << 20, 7);
        memset(h + 8192, i, 64);
        cuStreamSynchronize(s);
    }
}
static void *a_thread(void *given) {
    unsigned char *from = given;
    for (int i = 0; i < 50; i++) {
        memset(from, i, 64);
        cuMemcpyHtoDAsync_v2(d + (size_t)(from - h), from, 64, s);
        launch(put, s, d + (size_t)(from - h), 64, 0, 0);
        cuStreamSynchronize(s);
    }
    return NULL;
}
SEEDED two_threads(void) { /* the same place, one after the other on the stream */
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, a_thread, h + 64 * i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}
SEEDED freed_in_flight(void) {
    for (int i = 0; i < TIMES; i++) {
        unsigned char *p = pinned(N);
        memset(p, i, N);
        backlog(3000);
        cuMemcpyHtoDAsync_v2(d, p, N, s);
        use(N, i);
        cuMemFreeHost(p);
    }
}
SEEDED freed_after(void) {
    for (int i = 0; i < TIMES; i++) {
        unsigned char *p = pinned(N);
        memset(p, i, N);
        cuMemcpyHtoDAsync_v2(d, p, N, s);
        use(N, i);
        cuStreamSynchronize(s);
        cuMemFreeHost(p);
    }
}
SEEDED read_early(void) { /* a result is used after a while, not after a wait */
    uint64_t *result = (uint64_t *)fetched;
    for (int i = 0; i < TIMES; i++) {
        memset(h, (int)(*result >> 40) + i, N);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        cuStreamSynchronize(s);
        launch(sum, s, d, N, d2, 0);
        cuMemcpyDtoHAsync_v2(result, d2, 8, s);
        nap(15000);
    }
}
SEEDED kernel_fills_source(void) {
    for (int i = 0; i < TIMES; i++) {
        launch(put, s, (uintptr_t)h, N, (uint64_t)i, 0);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
    }
}
SEEDED other_stream_fills_source(void) {
    for (int i = 0; i < TIMES; i++) {
        cuEventRecord(event[1], s), cuStreamWaitEvent(other, event[1], 0);
        launch(put, other, (uintptr_t)h, N, (uint64_t)i, 0);
        cuEventRecord(event[0], other), cuStreamWaitEvent(s, event[0], 0);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
    }
}
static int filled;
static void fill(void *nothing) { memset(h, filled++, N), (void)nothing; }
SEEDED host_function_fills_source(void) {
    for (int i = 0; i < TIMES; i++) {
        cuLaunchHostFunc(s, fill, NULL);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
    }
}
SEEDED result_is_sent(void) {
    for (int i = 0; i < TIMES; i++) {
        launch(put, s, d2, N, (uint64_t)i, 0);
        cuMemcpyDtoHAsync_v2(h, d2, N, s);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
    }
}
SEEDED gated(void) {
    uint64_t *gate = pinned(8);
    for (int i = 0; i < TIMES; i++) {
        cuStreamWaitValue64_v2(s, (uintptr_t)gate, (uint64_t)i + 1, 0);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        use(N, i);
        memset(h, i, N);
        __atomic_store_n(gate, (uint64_t)i + 1, __ATOMIC_SEQ_CST);
        cuStreamSynchronize(s);
    }
}
static void *captures(void *refused) {
    Graph g;
    cuStreamBeginCapture_v2(other, 0);
    for (int i = 0; i < 20; i++) launch(work, other, 10, 0, 0, 0), nap(2000);
    *(int *)refused = cuStreamEndCapture(other, &g);
    return NULL;
}
SEEDED capture_beside(void) {
    pthread_t thread;
    int refused = -1;
    pthread_create(&thread, NULL, captures, &refused);
    nap(3000);
    for (int i = 0; i < TIMES; i++) {
        memset(h + i * N, i, N);
        cuMemcpyHtoDAsync_v2(d, h + i * N, N, s);
        use(N, i);
        nap(1000);
    }
    pthread_join(thread, NULL);
    printf("capture %d\n", refused);
}
SEEDED steps(void) { /* three copies a step, the second of which races */
    Graph g;
    Exec x;
    cuStreamBeginCapture_v2(s, 1);
    backlog(50);
    cuStreamEndCapture(s, &g);
    cuGraphInstantiateWithFlags(&x, g, 0);
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, 3 * N);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        cuMemcpyHtoDAsync_v2(d + N, h + N, N, s);
        cuMemcpyHtoDAsync_v2(d + 2 * N, h + 2 * N, N, s);
        cuGraphLaunch(x, s);
        nap(10000);
        memset(h + N, 255 - i, N);
        cuStreamSynchronize(s);
    }
}
SEEDED graph_copies(void) {
    Graph g;
    Exec x;
    cuStreamBeginCapture_v2(s, 1);
    backlog(300);
    cuMemcpyHtoDAsync_v2(d, h, N, s);
    cuMemcpyDtoHAsync_v2(h2, d, N, s);
    cuStreamEndCapture(s, &g);
    cuGraphInstantiateWithFlags(&x, g, 0);
    for (int i = 0; i < TIMES; i++) {
        memset(h, i, N);
        cuGraphLaunch(x, s);
    }
}
SEEDED forks(void) {
    pid_t child = fork();
    if (child) {
        waitpid(child, NULL, 0);
        begin();
        synced();
        return;
    }
    begin();
    overwritten_at_once();
    end();
    exit(0);
}
SEEDED forks_late(void) { /* with a driver that the child cannot use */
    pid_t child = fork();
    if (!child) _exit(0);
    waitpid(child, NULL, 0);
    overwritten_at_once();
}
SEEDED killed(void) {
    overwritten_at_once();
    cuStreamSynchronize(s);
    kill(getpid(), SIGKILL);
}
SEEDED results_on_the_stack(void) { /* which is gone at the next wait; and results in memory that is freed */
    for (int i = 0; i < TIMES; i++) {
        unsigned char here[64], *p = pinned(64);
        memset(h, i, N);
        cuMemcpyHtoDAsync_v2(d, h, N, s);
        cuMemcpyDtoHAsync_v2(here, d, 64, s);
        cuMemcpyDtoHAsync_v2(p, d, 64, s);
        cuMemFreeHost(p);
        cuMemcpy((uintptr_t)here, d, 64);
    }
}
SEEDED other_results(void) { /* another result in every run */
    memset(h, getpid(), N);
    cuMemcpyHtoDAsync_v2(d, h, N, s);
}
SEEDED fails_late(void) { /* ends otherwise if a copy is late */
    memset(h, 1, N);
    cuMemcpyHtoDAsync_v2(d, h, N, s);
    nap(15000);
    if (cuStreamQuery(s) != SUCCESS) exit(3);
}

static const struct {
    const char *name;
    void (*run)(void);
} all[] = {
#define X(name) {#name, name},
    X(overwritten_at_once) X(overwritten_late) X(wrong_event) X(early_event) X(double_buffer_event)
    X(single_buffer_event_of_two) X(synced) X(polled) X(same_bytes) X(any_way) X(batch) X(batch_during_call) X(rows_2d)
    X(rows_2d_synced) X(planes_3d) X(planes_apart) X(registered) X(pageable) X(managed) X(own_stream_of_the_thread) X(large) X(large_between_samples)
    X(two_threads) X(freed_in_flight) X(freed_after) X(read_early) X(kernel_fills_source) X(other_stream_fills_source) X(host_function_fills_source)
    X(result_is_sent) X(gated) X(capture_beside) X(steps) X(graph_copies) X(forks) X(forks_late) X(killed) X(results_on_the_stack) X(other_results)
    X(fails_late)
};

int main(int count, char **arguments) {
    for (size_t i = 0; count > 1 && i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, arguments[1]) == 0) {
            if (all[i].run != forks) begin();
            all[i].run();
            end();
            return 0;
        }
    return 2;
}
