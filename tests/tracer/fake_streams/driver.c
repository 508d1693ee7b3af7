/* Stands for libcuda.so.1: a device without a GPU that is truly asynchronous, so that races show.
 *
 * Each stream is a queue that a thread of its own works off. A copy from pinned memory reads its source when its turn
 * comes, one from pageable memory at the call; one to pageable memory is over when its call returns. Kernels are functions of this file, by name. What no other thread may do
 * while one captures in the global mode invalidates the capture, as with NVIDIA's driver. The calls that are not here are
 * those of ../fake_driver/rest.c, which do nothing.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../tracer/recorders/native/driver.h"

enum { INVALIDATED = 901, IMPLICIT = 906, BAD_HANDLE = 400 };
enum What { COPY, WRITE, WAIT, RECORD, AWAIT, FUNCTION, KERNEL };

typedef struct Op {
    enum What what;
    struct Op *next;
    char *to, *from, *staged;
    size_t width, rows, to_pitch, from_pitch;
    int from_host, to_host;
    uint64_t *word, value;
    Event event;
    uint64_t ticket;
    HostFunction function;
    void *data;
    void (*kernel)(uint64_t *);
    uint64_t arguments[4];
} Op;

struct Event_ {
    uint64_t recorded, done;
};
struct Graph_ {
    Op *ops[256];
    int count;
};
struct Exec_ {
    struct Graph_ graph;
};
struct Context_ {
    int nothing;
};
struct Function_ {
    void (*kernel)(uint64_t *);
};
struct Stream_ {
    Op *first, *last;
    uint64_t put, done;
    int has_thread, capturing;
    unsigned flags;
    Graph graph;
    Stream next;
};

static struct Context_ context;
static struct Stream_ legacy, *all = &legacy;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int capturing, invalidated; /* in the global mode */
static __thread int capture_mode;
static __thread struct Stream_ *mine; /* the default stream of a thread */
int fake_refused;                     /* own calls that invalidated a capture */

void say(const char *what) { (void)what; }

static void child(void) { /* the threads stay behind */
    pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t none = PTHREAD_COND_INITIALIZER;
    lock = open, changed = none;
    memset(&legacy, 0, sizeof legacy);
    all = &legacy;
}
__attribute__((constructor)) static void start(void) { pthread_atfork(NULL, NULL, child); }

static Stream of(Stream s, int own) {
    if (s == (Stream)1 || (!s && !own)) return &legacy;
    if (s != (Stream)2 && s) return s;
    if (!mine) {
        mine = calloc(1, sizeof *mine);
        pthread_mutex_lock(&lock);
        mine->next = all, all = mine;
        pthread_mutex_unlock(&lock);
    }
    return mine;
}

static void nap(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* Kernels. */
static void work(uint64_t *a) { nap((long)a[0]); } /* µs */
static void put(uint64_t *a) { memset((void *)a[0], (int)a[2], a[1]); }
static void check(uint64_t *a) { /* bytes, count, value, place of the number of wrong runs */
    int wrong = 0;
    for (uint64_t i = 0; i < a[1]; i++) wrong |= ((unsigned char *)a[0])[i] != (unsigned char)a[2];
    *(int *)a[3] += wrong;
}
static void sum(uint64_t *a) { /* bytes, count, place of the sum */
    uint64_t total = 0;
    for (uint64_t i = 0; i < a[1]; i++) total = total * 31 + ((unsigned char *)a[0])[i];
    *(uint64_t *)a[2] = total;
}
static const struct {
    const char *name;
    void (*kernel)(uint64_t *);
} kernels[] = {{"work", work}, {"put", put}, {"check", check}, {"sum", sum}};

static void run(Op *op) {
    const char *from = op->staged ? op->staged : op->from;
    switch (op->what) {
    case COPY:
        for (size_t i = 0; i < op->rows; i++)
            memcpy(op->to + i * op->to_pitch, from + i * (op->staged ? op->width : op->from_pitch), op->width);
        free(op->staged);
        break;
    case WRITE: __atomic_store_n(op->word, op->value, __ATOMIC_SEQ_CST); break;
    case WAIT:
        while ((int64_t)(__atomic_load_n(op->word, __ATOMIC_SEQ_CST) - op->value) < 0) nap(20);
        break;
    case RECORD:
        pthread_mutex_lock(&lock);
        if (op->event->done < op->ticket) op->event->done = op->ticket;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        break;
    case AWAIT:
        pthread_mutex_lock(&lock);
        while (op->event->done < op->ticket) pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        break;
    case FUNCTION: op->function(op->data); break;
    case KERNEL: op->kernel(op->arguments); break;
    }
}

static void *serve(void *given) {
    Stream s = given;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!s->first) pthread_cond_wait(&changed, &lock);
        Op *op = s->first;
        pthread_mutex_unlock(&lock);
        run(op);
        pthread_mutex_lock(&lock);
        if (!(s->first = op->next)) s->last = NULL;
        free(op);
        s->done++;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

static Result enqueue(Stream s, const Op *given) {
    Op *op = malloc(sizeof *op);
    *op = *given;
    op->next = NULL;
    pthread_mutex_lock(&lock);
    if (s->capturing) {
        s->graph->ops[s->graph->count++] = op;
        pthread_mutex_unlock(&lock);
        return SUCCESS;
    }
    if (!s->has_thread) {
        pthread_t thread;
        s->has_thread = 1;
        pthread_create(&thread, NULL, serve, s), pthread_detach(thread);
    }
    if (op->what == RECORD) op->ticket = ++op->event->recorded;
    if (op->what == AWAIT) op->ticket = op->event->recorded;
    if (s->last) s->last->next = op;
    else s->first = op;
    s->last = op;
    s->put++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* Not beside a capture in the global mode, unless the thread has said that it knows. */
static int is_forbidden(void) {
    if (!capturing || capture_mode == CAPTURE_MODE_RELAXED) return 0;
    return invalidated = 1;
}

/* Memory. */
static struct {
    uintptr_t at;
    size_t bytes;
    unsigned type, managed;
} memory[4096];
static int memory_count;
static void note(void *at, size_t bytes, unsigned type, unsigned managed) {
    pthread_mutex_lock(&lock);
    memory[memory_count].at = (uintptr_t)at, memory[memory_count].bytes = bytes;
    memory[memory_count].type = type, memory[memory_count++].managed = managed;
    pthread_mutex_unlock(&lock);
}
static void forget(uintptr_t at) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < memory_count; i++)
        if (memory[i].at == at) memory[i] = memory[--memory_count];
    pthread_mutex_unlock(&lock);
}
static unsigned type_of(uintptr_t at, unsigned *managed, uint64_t *start, uint64_t *bytes) {
    unsigned type = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < memory_count; i++)
        if (at - memory[i].at < memory[i].bytes)
            type = memory[i].type, *managed = memory[i].managed, *start = memory[i].at, *bytes = memory[i].bytes;
    pthread_mutex_unlock(&lock);
    return type;
}
Result cuPointerGetAttributes(unsigned count, int *wanted, void **to, DevicePointer at) {
    uint64_t start = 0, bytes = 0;
    unsigned managed = 0, type = type_of(at, &managed, &start, &bytes);
    for (unsigned i = 0; i < count; i++) {
        if (wanted[i] == 2) *(unsigned *)to[i] = type;
        if (wanted[i] == 8) *(unsigned *)to[i] = managed;
        if (wanted[i] == 11) *(uint64_t *)to[i] = start;
        if (wanted[i] == 12) *(uint64_t *)to[i] = bytes;
    }
    return SUCCESS;
}
static void *fresh(size_t bytes, unsigned type, unsigned managed) {
    void *made = calloc(1, bytes);
    return note(made, bytes, type, managed), made;
}
Result cuMemAlloc_v2(DevicePointer *d, size_t n) { return *d = (uintptr_t)fresh(n, MEMORY_DEVICE, 0), SUCCESS; }
Result cuMemAllocManaged(DevicePointer *d, size_t n, unsigned f) {
    return (void)f, *d = (uintptr_t)fresh(n, MEMORY_DEVICE, 1), SUCCESS;
}
Result cuMemHostAlloc(void **p, size_t n, unsigned f) { return (void)f, *p = fresh(n, MEMORY_HOST, 0), SUCCESS; }
/* The memory itself stays: what is in flight may still be written. */
Result cuMemFreeHost(void *p) { return forget((uintptr_t)p), SUCCESS; }
Result cuMemFree_v2(DevicePointer d) { return forget(d), SUCCESS; }
Result cuMemHostRegister_v2(void *p, size_t n, unsigned f) {
    if (is_forbidden()) return INVALIDATED;
    if (getenv("FAKE_NO_REGISTER")) return ERROR_NOT_SUPPORTED;
    return (void)f, note(p, n, MEMORY_HOST, 0), SUCCESS;
}
Result cuMemHostUnregister(void *p) { return forget((uintptr_t)p), SUCCESS; }
Result cuMemHostGetDevicePointer_v2(DevicePointer *d, void *p, unsigned f) {
    return (void)f, *d = (uintptr_t)p, SUCCESS;
}

/* Contexts, functions, streams, events. */
Result cuInit(unsigned f) { return (void)f, SUCCESS; }
Result cuCtxGetCurrent(Context *c) { return *c = &context, SUCCESS; }
Result cuModuleGetFunction(Function *f, Module m, const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0) {
            *f = calloc(1, sizeof **f), (*f)->kernel = kernels[i].kernel;
            return (void)m, SUCCESS;
        }
    return 500;
}
Result cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode, *mode = before;
    return SUCCESS;
}
Result cuStreamCreate(Stream *s, unsigned flags) {
    *s = calloc(1, sizeof **s);
    (*s)->flags = flags;
    pthread_mutex_lock(&lock);
    (*s)->next = all, all = *s;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
Result cuStreamDestroy_v2(Stream s) { return (void)s, SUCCESS; }
Result cuStreamGetFlags(Stream s, unsigned *flags) { return *flags = s->flags, SUCCESS; }
Result cuEventCreate(Event *e, unsigned f) { return (void)f, *e = calloc(1, sizeof **e), SUCCESS; }

static Result finish(Stream s) {
    if (is_forbidden() || s->capturing) return INVALIDATED;
    pthread_mutex_lock(&lock);
    for (uint64_t all_of = s->put; s->done < all_of;) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
Result cuStreamSynchronize(Stream s) { return finish(of(s, 0)); }
Result cuStreamSynchronize_ptsz(Stream s) { return finish(of(s, 1)); }
Result cuCtxSynchronize(void) {
    Result result = SUCCESS;
    for (Stream s = all; s && !result; s = s->next) result = finish(s);
    return result;
}
static Result query(Stream s) {
    if (is_forbidden() || s->capturing) return INVALIDATED;
    pthread_mutex_lock(&lock);
    int is_done = s->done == s->put;
    pthread_mutex_unlock(&lock);
    return is_done ? SUCCESS : ERROR_NOT_READY;
}
Result cuStreamQuery(Stream s) { return query(of(s, 0)); }
Result cuStreamQuery_ptsz(Stream s) { return query(of(s, 1)); }
Result cuEventRecord(Event e, Stream s) { return enqueue(of(s, 0), &(Op){.what = RECORD, .event = e}); }
Result cuEventRecord_ptsz(Event e, Stream s) { return enqueue(of(s, 1), &(Op){.what = RECORD, .event = e}); }
Result cuStreamWaitEvent(Stream s, Event e, unsigned f) {
    return (void)f, enqueue(of(s, 0), &(Op){.what = AWAIT, .event = e});
}
Result cuEventSynchronize(Event e) {
    pthread_mutex_lock(&lock);
    for (uint64_t until = e->recorded; e->done < until;) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
Result cuEventQuery(Event e) {
    if (is_forbidden()) return INVALIDATED;
    pthread_mutex_lock(&lock);
    int is_done = e->done == e->recorded;
    pthread_mutex_unlock(&lock);
    return is_done ? SUCCESS : ERROR_NOT_READY;
}
Result cuStreamWriteValue64_v2(Stream s, DevicePointer d, uint64_t v, unsigned f) {
    if (getenv("FAKE_NO_VALUES")) return ERROR_NOT_SUPPORTED;
    return (void)f, enqueue(of(s, 0), &(Op){.what = WRITE, .word = (uint64_t *)d, .value = v});
}
Result cuStreamWaitValue64_v2(Stream s, DevicePointer d, uint64_t v, unsigned f) {
    return (void)f, enqueue(of(s, 0), &(Op){.what = WAIT, .word = (uint64_t *)d, .value = v});
}
Result cuLaunchHostFunc(Stream s, HostFunction f, void *d) {
    return enqueue(of(s, 0), &(Op){.what = FUNCTION, .function = f, .data = d});
}
Result cuLaunchKernel(Function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, Stream s, void **p, void **e) {
    Op op = {.what = KERNEL, .kernel = f->kernel};
    for (int i = 0; i < 4 && p[i]; i++) op.arguments[i] = *(uint64_t *)p[i];
    return (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)e, enqueue(of(s, 0), &op);
}

/* Copies. */
static Result copy(Stream s, uintptr_t to, uintptr_t from, size_t width, size_t rows, size_t to_pitch, size_t from_pitch,
                   int is_now) {
    uint64_t start, bytes;
    unsigned managed;
    Op op = {.what = COPY, .to = (char *)to, .from = (char *)from, .width = width, .rows = rows, .to_pitch = to_pitch,
             .from_pitch = from_pitch, .from_host = type_of(from, &managed, &start, &bytes) != MEMORY_DEVICE,
             .to_host = type_of(to, &managed, &start, &bytes) != MEMORY_DEVICE};
    if (!s->capturing && (is_now || !type_of(from, &managed, &start, &bytes))) {
        op.staged = malloc(width * rows);
        for (size_t i = 0; i < rows; i++) memcpy(op.staged + i * width, op.from + i * from_pitch, width);
    }
    return enqueue(s, &op);
}
Result cuMemcpyHtoDAsync_v2(DevicePointer d, const void *f, size_t n, Stream s) {
    return copy(of(s, 0), d, (uintptr_t)f, n, 1, 0, 0, 0);
}
Result cuMemcpyHtoDAsync_v2_ptsz(DevicePointer d, const void *f, size_t n, Stream s) {
    return copy(of(s, 1), d, (uintptr_t)f, n, 1, 0, 0, 0);
}
Result cuMemcpyDtoHAsync_v2(void *d, DevicePointer f, size_t n, Stream s) {
    uint64_t start, bytes;
    unsigned managed;
    Result result = copy(of(s, 0), (uintptr_t)d, f, n, 1, 0, 0, 0);
    int is_over = !of(s, 0)->capturing && !type_of((uintptr_t)d, &managed, &start, &bytes); /* pageable */
    return is_over ? finish(of(s, 0)) : result;
}
Result cuMemcpyAsync(DevicePointer d, DevicePointer f, size_t n, Stream s) { return copy(of(s, 0), d, f, n, 1, 0, 0, 0); }
Result cuMemcpy(DevicePointer d, DevicePointer f, size_t n) {
    Result result = finish(&legacy);
    return memcpy((void *)d, (void *)f, n), result;
}
Result cuMemcpyDtoH_v2(void *d, DevicePointer f, size_t n) {
    Result result = finish(&legacy);
    return memcpy(d, (void *)f, n), result;
}
Result cuMemcpy2DAsync_v2(const Copy2D *c, Stream s) {
    uintptr_t from = c->src.type == MEMORY_HOST ? (uintptr_t)c->src.host : c->src.device;
    uintptr_t to = c->dst.type == MEMORY_HOST ? (uintptr_t)c->dst.host : c->dst.device;
    from += c->src.y * c->src.pitch + c->src.x, to += c->dst.y * c->dst.pitch + c->dst.x;
    return copy(of(s, 0), to, from, c->width, c->height, c->dst.pitch, c->src.pitch, 0);
}
Result cuMemcpy3DAsync_v2(const Copy3D *c, Stream s) { /* planes of which the rows lie evenly */
    uintptr_t from = c->src.type == MEMORY_HOST ? (uintptr_t)c->src.host : c->src.device;
    uintptr_t to = c->dst.type == MEMORY_HOST ? (uintptr_t)c->dst.host : c->dst.device;
    for (size_t z = 0; z < c->depth; z++)
        copy(of(s, 0), to + z * c->dst.pitch * c->dst.height, from + z * c->src.pitch * c->src.height, c->width, c->height,
             c->dst.pitch, c->src.pitch, 0);
    return SUCCESS;
}
Result cuMemcpyBatchAsync(DevicePointer *d, DevicePointer *f, size_t *sizes, size_t count, void *attributes,
                          size_t *indices, size_t attribute_count, size_t *failed, Stream s) {
    int is_now = attributes && *(int *)attributes == 2; /* CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL */
    for (size_t i = 0; i < count; i++) copy(of(s, 0), d[i], f[i], sizes[i], 1, 0, 0, is_now);
    return (void)indices, (void)attribute_count, (void)failed, SUCCESS;
}

/* Graphs: chains of what was captured. */
Result cuStreamIsCapturing(Stream s, int *status) {
    s = of(s, 0);
    if (s == &legacy && capturing) return IMPLICIT;
    return *status = s->capturing, SUCCESS;
}
Result cuStreamBeginCapture_v2(Stream s, int mode) {
    s = of(s, 0);
    s->graph = calloc(1, sizeof *s->graph), s->capturing = 1;
    if (mode == 0) capturing = 1, invalidated = 0;
    return SUCCESS;
}
Result cuStreamEndCapture(Stream s, Graph *g) {
    s = of(s, 0);
    s->capturing = 0, capturing = 0;
    if (invalidated) return fake_refused++, *g = NULL, INVALIDATED;
    return *g = s->graph, SUCCESS;
}
Result cuGraphInstantiateWithFlags(Exec *x, Graph g, unsigned long long f) {
    *x = calloc(1, sizeof **x);
    return (void)f, (*x)->graph = *g, SUCCESS;
}
Result cuGraphLaunch(Exec x, Stream s) {
    for (int i = 0; i < x->graph.count; i++) enqueue(of(s, 0), x->graph.ops[i]);
    return SUCCESS;
}
Result cuGraphGetNodes(Graph g, Node *nodes, size_t *count) {
    for (size_t i = 0; nodes && i < *count && i < (size_t)g->count; i++) nodes[i] = (Node)g->ops[i];
    return *count = (size_t)g->count, SUCCESS;
}
Result cuGraphNodeGetType(Node n, int *type) { return *type = ((Op *)n)->what == COPY ? 1 : 0, SUCCESS; }
Result cuGraphMemcpyNodeGetParams(Node n, Copy3D *c) {
    Op *op = (Op *)n;
    *c = (Copy3D){.src = {.type = op->from_host ? MEMORY_HOST : MEMORY_DEVICE, .host = op->from},
                  .dst = {.type = op->to_host ? MEMORY_HOST : MEMORY_DEVICE, .host = op->to},
                  .width = op->width, .height = op->rows, .depth = 1};
    return SUCCESS;
}
