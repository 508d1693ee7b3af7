/* Stands for libcuda.so.1: a device that does everything at once, and says what it did.
 *
 * Kernels are names given to cuModuleGetFunction; "stamp" does what the recorder's PTX does. Each kernel, copy and
 * graph that runs appends a word to `device_log`, which tests read, and so does what no program may do: a call with
 * a stream that was destroyed. Contexts are of a device each, the first is every thread's until it says otherwise; a
 * function is launched in its own alone. FAKE_* in the environment makes things fail: FAKE_SLOW lets a stream be busy
 * for a while after a launch, for cuStreamQuery to see; FAKE_LATE lets the recorder's gates open themselves; FAKE_LAUNCH_NS is how
 * long a launch takes; FAKE_DRIFT is by how many billionths the device's clock is faster than the host's.
 *
 * The kernel that tells the device's time runs for real, in a thread of its own, FAKE_FULL_US after its launch, and does
 * what the recorder's PTX does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../../tracer/recorders/native/driver.h"

typedef struct Node_ {
    int type, is_stamp;
    char name[24];
    uint64_t arguments[3];
    Context context;
    Graph inner;
    Node to[64];
    int to_count, from_count;
} NodeData;
struct Graph_ {
    Node nodes[256];
    int count;
};
struct Exec_ {
    int count, types[256], is_stamp[256];
    char names[256][24];
    uint64_t arguments[256][3];
    Context contexts[256];
};
struct Function_ {
    char name[24];
    Context context;
};
struct Context_ {
    int device;
    uint64_t counters[1 << 15];
};
struct Stream_ {
    int capturing, is_quiet, is_gone;
    uint64_t busy_until;
    Context context;
    Stream next;
};

static struct Context_ first_context;
/* Not allocated by the first call of a thread, which may be made in the handler of a signal. */
#define OF_THREAD _Thread_local __attribute__((tls_model("initial-exec")))
static OF_THREAD Context stack[8] = {&first_context};
static OF_THREAD int depth, capture_mode;
int fake_failing;           /* launches of graphs that are to fail */
void (*fake_called)(void); /* within each launch, as a profiler in the program would */
char device_log[1 << 16];
int destroyed_nodes;

static int is_silent, is_slow, is_late, is_idle, launch_ns, full_us;
static int64_t drift;
__attribute__((constructor)) static void ask(void) {
    is_silent = getenv("FAKE_SILENT") != NULL, is_slow = getenv("FAKE_SLOW") != NULL;
    is_late = getenv("FAKE_LATE") != NULL, is_idle = getenv("FAKE_IDLE") != NULL;
    launch_ns = getenv("FAKE_LAUNCH_NS") ? atoi(getenv("FAKE_LAUNCH_NS")) : 0;
    full_us = getenv("FAKE_FULL_US") ? atoi(getenv("FAKE_FULL_US")) : 0;
    drift = getenv("FAKE_DRIFT") ? atoi(getenv("FAKE_DRIFT")) : 0;
}

void say(const char *what) {
    if (is_silent) return;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static size_t length;
    pthread_mutex_lock(&lock);
    size_t more = strlen(what);
    if (length + more + 2 < sizeof device_log) {
        memcpy(device_log + length, what, more);
        device_log[length + more] = ' ';
        length += more + 1;
    }
    pthread_mutex_unlock(&lock);
}

static uint64_t now(void) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t); /* in no runtime of a sanitizer, which knows not all threads here */
    int64_t here = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    return (uint64_t)(here + 5000000000 + here / 1000 * drift / 1000000); /* another clock than the host's */
}

/* Whether a stream may be used: it was not destroyed. */
static int is_there(Stream s) {
    if ((uintptr_t)s > 2 && s->is_gone) return say("GONE"), 0;
    return 1;
}

static void stamp(Context context, const uint64_t *a) {
    uint64_t *counters = context->counters;
    uint64_t *places = (uint64_t *)a[0], word = a[1], mask = a[2], graph = word >> 1 & 32767;
    uint64_t slot = __atomic_fetch_add(&counters[0], 1, __ATOMIC_SEQ_CST);
    int is_numbered = graph == 0 || graph == 32766; /* it brings the number of its run along */
    if (!is_numbered) word |= (counters[graph] & 0xffffff) << 16;
    if (!is_numbered && word & 1) counters[graph]++;
    places[2 * (slot & mask)] = now();
    places[2 * (slot & mask) + 1] = word | (slot + 1) << 40;
    if (graph != 32767) say(word & 1 ? "tail" : "head"); /* not of the chain that the recorder begins with */
}

/* Kernels that run for real, in threads of the kernel's alone: a sanitizer knows nothing of them, and no memory is
 * allocated, as the handler of a signal may not. The next launch waits for those that have ended: a device has no threads. */
static struct Running {
    char stack[1 << 14] __attribute__((aligned(64)));
    _Atomic int is_taken, has_ended;
    _Atomic pid_t runs; /* cleared as the thread ends */
    uint64_t arguments[3];
    pid_t process;
} running[64];

static int answer(void *given) {
    struct Running *mine = given;
    uint64_t *board = (uint64_t *)mine->arguments[0], final = mine->arguments[2], begun = now();
    while (now() - begun < (uint64_t)full_us * 1000) continue;
    begun = now();
    for (uint64_t question = mine->arguments[1];; question++) {
        __atomic_store_n(&board[16], now(), __ATOMIC_RELAXED);
        __atomic_store_n(&board[17], question, __ATOMIC_RELEASE);
        if (question >= final) break;
        while (__atomic_load_n(&board[0], __ATOMIC_ACQUIRE) <= question && now() - begun < 200000) continue;
        if (__atomic_load_n(&board[0], __ATOMIC_ACQUIRE) <= question) break;
    }
    __atomic_store_n(&board[32], final, __ATOMIC_RELEASE);
    return mine->has_ended = 1, 0;
}

static int (*start_thread)(int (*)(void *), void *, int, void *, ...);
__attribute__((constructor)) static void find_clone(void) { *(void **)&start_thread = dlsym(RTLD_NEXT, "clone"); }

static void join_ended(void) {
    for (struct Running *each = running; each < running + 64; each++) {
        int ended = 1;
        if (!each->has_ended || !__atomic_compare_exchange_n(&each->has_ended, &ended, 0, 0, 5, 5)) continue;
        while (each->process == getpid() && each->runs) sched_yield();
        each->is_taken = 0;
    }
}

/* A device needs no processor: where that may be, this thread takes another one than the caller's at once. */
static void start_answering(const uint64_t *arguments) {
    const int how = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                    CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    cpu_set_t others;
    sigset_t all, before;
    struct Running *mine = running;
    for (int none = 0; !__atomic_compare_exchange_n(&mine->is_taken, &none, 1, 0, 5, 5); none = 0)
        if (++mine == running + 64) return;
    memcpy(mine->arguments, arguments, sizeof mine->arguments);
    mine->process = getpid();
    mine->runs = 1;
    sigfillset(&all), pthread_sigmask(SIG_BLOCK, &all, &before);
    pid_t thread = start_thread(answer, mine->stack + sizeof mine->stack, how, mine, &mine->runs, NULL, &mine->runs);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (thread < 0) mine->is_taken = 0;
    sched_getaffinity(0, sizeof others, &others);
    CPU_CLR(sched_getcpu(), &others);
    if (thread > 0 && CPU_COUNT(&others)) sched_setaffinity(thread, sizeof others, &others);
    if (thread > 0) sched_setscheduler(thread, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
}

static void run(const char *name, int is_stamp, Context context, const uint64_t *arguments) {
    if (is_idle) return; /* the device is no cost of the host's */
    if (strcmp(name, "answers") == 0) {
        if (capture_mode != CAPTURE_MODE_RELAXED) say("STRICT");
        return start_answering(arguments);
    }
    if (is_stamp) stamp(context, arguments);
    else say(name);
}

Result cuInit(unsigned flags) { return (void)flags, SUCCESS; }
Result cuCtxGetCurrent(Context *c) { return *c = stack[depth], SUCCESS; }
Result cuCtxSetCurrent(Context c) { return stack[depth] = c, SUCCESS; }
Result cuCtxPushCurrent_v2(Context c) { return stack[++depth] = c, SUCCESS; }
Result cuCtxPopCurrent_v2(Context *c) { return *c = stack[depth--], SUCCESS; }
Result cuCtxGetDevice(int *device) { return *device = stack[depth]->device, SUCCESS; }
Result cuCtxCreate_v2(Context *c, unsigned flags, int device) {
    *c = calloc(1, sizeof **c);
    (*c)->device = device;
    return (void)flags, stack[depth] = *c, SUCCESS;
}
Result cuCtxDestroy_v2(Context c) {
    if (c == stack[depth]) stack[depth] = NULL;
    return say("cuCtxDestroy_v2"), free(c), SUCCESS;
}
Result cuDeviceGetName(char *name, int length, int device) {
    return (void)device, strncpy(name, "Fake GPU", (size_t)length), SUCCESS;
}
Result cuDeviceGetUuid_v2(void *uuid, int device) {
    const char *first = getenv("CUDA_VISIBLE_DEVICES");
    uint64_t gpu[2] = {1, (uint64_t)(device + (first ? atoi(first) : 0))};
    return memcpy(uuid, gpu, sizeof gpu), SUCCESS;
}
Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *flags = 0, *active = 0, SUCCESS; }
Result cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    return *mode = before, SUCCESS;
}
Result cuGraphDestroy(Graph g) { return free(g), SUCCESS; }

/* The handle of a destroyed stream is the next one's. */
static Stream spare;
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
Result cuStreamDestroy_v2(Stream s) {
    if (!s->is_quiet) say("cuStreamDestroy_v2");
    pthread_mutex_lock(&spare_lock);
    s->is_gone = 1, s->next = spare, spare = s;
    pthread_mutex_unlock(&spare_lock);
    return SUCCESS;
}
Result cuStreamDestroy(Stream s) { return cuStreamDestroy_v2(s); }
Result cuStreamCreate(Stream *s, unsigned flags) {
    pthread_mutex_lock(&spare_lock);
    *s = spare ? spare : malloc(sizeof **s);
    if (spare) spare = spare->next;
    pthread_mutex_unlock(&spare_lock);
    **s = (struct Stream_){.is_quiet = flags == 1 /* the recorder's own, non-blocking one */, .context = stack[depth]};
    return SUCCESS;
}
Result called(const char *name);
Result cuStreamSynchronize(Stream s) {
    if (!is_there(s)) return 400;
    return (uintptr_t)s > 2 && s->is_quiet ? SUCCESS : called("cuStreamSynchronize");
}
Result cuStreamQuery(Stream s) {
    if (!is_there(s)) return 400;
    return called("cuStreamQuery"), (uintptr_t)s > 2 && is_slow && now() < s->busy_until ? 600 : SUCCESS;
}
Result cuStreamIsCapturing(Stream s, int *status) {
    if (!is_there(s)) return 400;
    return *status = (uintptr_t)s > 2 && s->capturing ? 1 : 0, SUCCESS;
}
Result cuStreamBeginCapture_v2(Stream s, int mode) {
    if (s) s->capturing = 1;
    return (void)mode, say("cuStreamBeginCapture_v2"), SUCCESS;
}
Result cuStreamEndCapture(Stream s, Graph *g) {
    if (s) s->capturing = 0;
    return (void)g, say("cuStreamEndCapture"), SUCCESS;
}
Result cuModuleLoadData(Module *m, const void *text) {
    if (getenv("FAKE_NO_JIT")) return 222;
    return *m = (Module)text, SUCCESS;
}
Function fake_kernel(const char *name) {
    Function made = calloc(1, sizeof *made);
    made->context = stack[depth];
    strncpy(made->name, name, sizeof made->name - 1);
    return made;
}
Result cuModuleGetFunction(Function *f, Module m, const char *name) {
    return (void)m, *f = fake_kernel(name), SUCCESS;
}
Result cuLibraryGetKernel(Function *k, Library l, const char *name) {
    return (void)l, *k = fake_kernel(name), SUCCESS;
}
Result cuKernelGetFunction(Function *f, Function k) { return *f = fake_kernel(k->name), SUCCESS; }
Result cuKernelGetName(const char **name, Function k) { return *name = k->name, SUCCESS; }
Result cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
    return (void)p, (void)n, (void)flags, getenv("FAKE_NO_REGISTER") ? ERROR_NOT_SUPPORTED : SUCCESS;
}
Result cuMemHostGetDevicePointer_v2(DevicePointer *d, void *p, unsigned flags) {
    return (void)flags, *d = (uintptr_t)p, SUCCESS;
}

/* Graphs */
Result cuGraphCreate(Graph *g, unsigned flags) { return (void)flags, *g = calloc(1, sizeof **g), SUCCESS; }
static Node add(Graph g, int type, const Node *from, size_t count) {
    Node n = calloc(1, sizeof *n);
    n->type = type;
    for (size_t i = 0; i < count; i++) from[i]->to[from[i]->to_count++] = n, n->from_count++;
    return g->nodes[g->count++] = n;
}
Result cuGraphAddKernelNode(Node *n, Graph g, const Node *from, size_t count, const KernelNode *k) {
    if (getenv("FAKE_NO_NODES") && strcmp(k->function->name, "stamp") == 0) return ERROR_NOT_SUPPORTED;
    if (!stack[depth]) return 201; /* CUDA_ERROR_INVALID_CONTEXT */
    *n = add(g, 0, from, count);
    (*n)->context = k->function->context;
    strcpy((*n)->name, k->function->name);
    (*n)->is_stamp = strcmp(k->function->name, "stamp") == 0;
    for (int i = 0; (*n)->is_stamp && i < 3; i++) (*n)->arguments[i] = *(uint64_t *)k->parameters[i];
    return SUCCESS;
}
/* For tests: a node of any type. */
Result fakeAddNode(Node *n, Graph g, const Node *from, size_t count, int type) {
    return *n = add(g, type, from, count), SUCCESS;
}
Result cuGraphAddChildGraphNode(Node *n, Graph g, const Node *from, size_t count, Graph child) {
    *n = add(g, NODE_GRAPH, from, count);
    return (*n)->inner = child, SUCCESS;
}
Result cuGraphChildGraphNodeGetGraph(Node n, Graph *g) { return *g = n->inner, SUCCESS; }
Result cuGraphGetNodes(Graph g, Node *nodes, size_t *count) {
    for (size_t i = 0; nodes && i < *count && i < (size_t)g->count; i++) nodes[i] = g->nodes[i];
    return *count = (size_t)g->count, SUCCESS;
}
Result cuGraphGetRootNodes(Graph g, Node *nodes, size_t *count) {
    size_t found = 0;
    for (int i = 0; i < g->count; i++)
        if (!g->nodes[i]->from_count) {
            if (nodes && found < *count) nodes[found] = g->nodes[i];
            found++;
        }
    return *count = found, SUCCESS;
}
Result cuGraphNodeGetType(Node n, int *type) { return *type = n->type, SUCCESS; }
Result cuGraphNodeGetDependentNodes(Node n, Node *to, size_t *count) {
    for (int i = 0; to && i < n->to_count; i++) to[i] = n->to[i];
    return *count = (size_t)n->to_count, SUCCESS;
}
Result cuGraphAddDependencies(Graph g, const Node *from, const Node *to, size_t count) {
    (void)g;
    for (size_t i = 0; i < count; i++) from[i]->to[from[i]->to_count++] = to[i], to[i]->from_count++;
    return SUCCESS;
}
static Graph last_graph;
Result cuGraphDestroyNode(Node n) {
    Graph g = last_graph;
    for (int i = 0; i < n->to_count; i++) n->to[i]->from_count--;
    for (int i = 0, kept = 0, all = g->count; i < all; i++) {
        Node other = g->nodes[i];
        for (int j = 0; j < other->to_count; j++)
            if (other->to[j] == n) other->to[j--] = other->to[--other->to_count];
        if (other != n) g->nodes[kept++] = other, g->count = kept;
    }
    free(n);
    return destroyed_nodes++, SUCCESS;
}

static void flatten(Exec x, Graph g) { /* in the order of the edges */
    int waiting[256], done = 0, gone[256] = {0};
    for (int i = 0; i < g->count; i++) waiting[i] = g->nodes[i]->from_count;
    while (done < g->count)
        for (int i = 0; i < g->count; i++) {
            if (gone[i] || waiting[i]) continue;
            Node n = g->nodes[i];
            gone[i] = 1, done++;
            for (int j = 0; j < n->to_count; j++)
                for (int k = 0; k < g->count; k++)
                    if (g->nodes[k] == n->to[j]) waiting[k]--;
            if (n->inner) flatten(x, n->inner);
            x->types[x->count] = n->type, x->is_stamp[x->count] = n->is_stamp;
            strcpy(x->names[x->count], n->inner ? "child" : n->name);
            x->contexts[x->count] = n->context;
            memcpy(x->arguments[x->count++], n->arguments, sizeof n->arguments);
        }
}
static Result instantiate(Exec *x, Graph g) {
    last_graph = g;
    for (int i = 0; i < g->count && getenv("FAKE_REFUSES_STAMPS"); i++)
        if (g->nodes[i]->is_stamp) return ERROR_INVALID_VALUE;
    flatten(*x = calloc(1, sizeof **x), g);
    return SUCCESS;
}
Result cuGraphInstantiate(Exec *x, Graph g, Node *n, char *log, size_t size) {
    return (void)n, (void)log, (void)size, instantiate(x, g);
}
Result cuGraphInstantiate_v2(Exec *x, Graph g, Node *n, char *log, size_t size) {
    return (void)n, (void)log, (void)size, instantiate(x, g);
}
Result cuGraphInstantiateWithFlags(Exec *x, Graph g, unsigned long long f) { return (void)f, instantiate(x, g); }
Result cuGraphInstantiateWithParams(Exec *x, Graph g, InstantiateParams *p) { return (void)p, instantiate(x, g); }
Result cuGraphInstantiateWithParams_ptsz(Exec *x, Graph g, InstantiateParams *p) { return (void)p, instantiate(x, g); }
static Result update(Exec x, Graph g) {
    struct Exec_ new = {0};
    last_graph = g;
    flatten(&new, g);
    if (new.count != x->count || memcmp(new.contexts, x->contexts, sizeof new.contexts))
        return 910; /* CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE */
    *x = new;
    return SUCCESS;
}
Result cuGraphExecUpdate(Exec x, Graph g, Node *n, int *how) { return (void)n, *how = 0, update(x, g); }
Result cuGraphExecUpdate_v2(Exec x, Graph g, UpdateResult *how) { return (void)how, update(x, g); }
Result cuGraphExecDestroy(Exec x) { return free(x), SUCCESS; }
Result cuGraphLaunch(Exec x, Stream s) {
    if (!is_there(s) || fake_failing > 0 && fake_failing--) return ERROR_INVALID_VALUE;
    for (int i = 0; i < x->count; i++) run(x->names[i], x->is_stamp[i], x->contexts[i], x->arguments[i]);
    return SUCCESS;
}
Result cuGraphLaunch_ptsz(Exec x, Stream s) { return cuGraphLaunch(x, s); }

/* A host function runs on a thread of the driver, before the call returns; a captured one not at all. */
static struct {
    pthread_mutex_t lock;
    HostFunction function;
    StreamCallback callback;
    Stream stream;
    void *data;
} put = {PTHREAD_MUTEX_INITIALIZER};
static void *run_put(void *nothing) {
    if (put.function) put.function(put.data);
    else put.callback(put.stream, SUCCESS, put.data);
    return nothing;
}
static Result put_on(Stream s, HostFunction f, StreamCallback c, void *d, const char *name) {
    pthread_t thread;
    if (!is_there(s)) return 400;
    say(name);
    if ((uintptr_t)s > 2 && s->capturing) return SUCCESS;
    if (!f && !c) return SUCCESS;
    pthread_mutex_lock(&put.lock);
    put.function = f, put.callback = c, put.stream = s, put.data = d;
    pthread_create(&thread, NULL, run_put, NULL), pthread_join(thread, NULL);
    return pthread_mutex_unlock(&put.lock), SUCCESS;
}
Result cuLaunchHostFunc(Stream s, HostFunction f, void *d) { return put_on(s, f, NULL, d, "cuLaunchHostFunc"); }
Result cuStreamAddCallback(Stream s, StreamCallback f, void *d, unsigned flags) {
    return put_on(s, NULL, f, d, "cuStreamAddCallback");
}

#define G unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
static Result launch(Function f, Stream s, void **p) {
    uint64_t arguments[3] = {0};
    int is_stamp = strcmp(f->name, "stamp") == 0, is_told = is_stamp || strcmp(f->name, "answers") == 0;
    join_ended();
    if (fake_called) fake_called();
    for (uint64_t until = launch_ns ? now() + (uint64_t)launch_ns : 0; launch_ns && now() < until;) continue;
    if (!is_there(s) || f->context != stack[depth] || (uintptr_t)s > 2 && s->context != f->context) return 400;
    for (int i = 0; is_told && i < 3; i++) arguments[i] = *(uint64_t *)p[i];
    if (is_late && strcmp(f->name, "gate") == 0) (*(uint64_t **)p[0])[1] = *(uint64_t *)p[1];
    if ((uintptr_t)s > 2 && is_slow) s->busy_until = now() + 2000000;
    return run(f->name, is_stamp, f->context, arguments), SUCCESS;
}
#define UNUSED (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared
Result cuLaunchKernel(Function f, G, Stream s, void **p, void **e) { return UNUSED, (void)e, launch(f, s, p); }
Result cuLaunchKernel_ptsz(Function f, G, Stream s, void **p, void **e) { return UNUSED, (void)e, launch(f, s, p); }
Result cuLaunchCooperativeKernel(Function f, G, Stream s, void **p) { return UNUSED, launch(f, s, p); }
Result cuLaunchKernelEx(const LaunchConfig *c, Function f, void **p, void **e) {
    return (void)e, launch(f, c ? c->stream : NULL, p);
}
