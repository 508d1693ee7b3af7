/* Contexts and the kernels loaded into them; driver functions that only we call. */
#ifndef INTERTOKEN_DEVICE_H
#define INTERTOKEN_DEVICE_H

#include "driver.h"
#include "ring.h"

/* Looked up together with the first context. */
#define DRIVER_CALLS(X)                                                                                               \
    X(cuCtxGetCurrent, (Context *))                                                                                   \
    X(cuStreamIsCapturing, (Stream, int *))                                                                           \
    X(cuCtxGetDevice, (int *))                                                                                        \
    X(cuCtxPushCurrent_v2, (Context))                                                                                 \
    X(cuCtxPopCurrent_v2, (Context *))                                                                                \
    X(cuDevicePrimaryCtxGetState, (int, unsigned *, int *))                                                           \
    X(cuDeviceGetName, (char *, int, int))                                                                            \
    X(cuThreadExchangeStreamCaptureMode, (int *))                                                                     \
    X(cuModuleLoadData, (Module *, const void *))                                                                     \
    X(cuModuleGetFunction, (Function *, Module, const char *))                                                        \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                               \
    X(cuMemHostGetDevicePointer_v2, (DevicePointer *, void *, unsigned))                                              \
    X(cuGraphGetNodes, (Graph, Node *, size_t *))                                                                     \
    X(cuGraphGetRootNodes, (Graph, Node *, size_t *))                                                                 \
    X(cuGraphNodeGetType, (Node, int *))                                                                              \
    X(cuGraphNodeGetDependentNodes, (Node, Node *, size_t *))                                                         \
    X(cuGraphChildGraphNodeGetGraph, (Node, Graph *))                                                                 \
    X(cuGraphAddKernelNode, (Node *, Graph, const Node *, size_t, const KernelNode *))                                \
    X(cuGraphAddDependencies, (Graph, const Node *, const Node *, size_t))                                            \
    X(cuGraphDestroyNode, (Node))                                                                                     \
    X(cuGraphCreate, (Graph *, unsigned))                                                                             \
    X(cuGraphDestroy, (Graph))                                                                                        \
    X(cuStreamCreate, (Stream *, unsigned))                                                                           \
    X(cuStreamDestroy_v2, (Stream))

/* The same; older drivers do not have them. */
#define NEWER_DRIVER_CALLS(X)                                                                                         \
    X(cuDeviceGetUuid_v2, (void *, int)) /* since CUDA 11.4 */                                                        \
    X(cuDeviceGetAttribute, (int *, int, int))

/* What each call uses, as far as the second function, is in one cache line. */
typedef struct {
    uint64_t apart; /* between samples of runs, and of their parts, relative to the time that one takes; 0: each run gets
                       stamps at its ends, and none inside */
    int stamps_graphs, stamps_runs; /* whether graphs, and runs of launches, get stamps */
    _Atomic int is_found;
    _Atomic unsigned contexts, generation; /* number of known contexts; changes when one is gone */
#define X(name, params) Result(*name) params;
    DRIVER_CALLS(X) NEWER_DRIVER_CALLS(X)
#undef X
} __attribute__((aligned(64))) Driver;

typedef struct {
    Context context;
    Function stamp; /* NULL: no stamps in this context */
    Function gate, nothing;
    DevicePointer places, chain; /* where it writes stamps of the program's work, and of the chain */
    _Atomic uint64_t *opened;    /* number up to which gates are open, then the last that the device opened itself */
    _Atomic uint64_t gates;      /* how many there have been */
} Device;

extern Device devices[CONTEXTS];

/* What is not used by calls, apart from what is. */
typedef struct {
    Function answers;
    Stream stream; /* our own, which waits for none of the program's, and none of them for it */
    Place *place;  /* for the host */
} Aside;

extern Aside asides[CONTEXTS];

/* Read what the environment says of stamps. Call it before any other thread runs. */
void device_start(void);

/* Look up the functions of the driver. */
void device_find(void);

const Driver *device_driver(void);

/* The index of the calling thread's context in the header; NO_CONTEXT if it has none, or there are too many. */
uint8_t device_context(void);

/* The same for another context; NO_CONTEXT if it is unknown. */
uint8_t device_of(Context context);

/* The number of known contexts, indexed from 0. */
unsigned device_count(void);

/* The context, which must be current, with the stamping kernel loaded; NULL if it cannot be loaded. */
Device *device_with_stamps(uint8_t context);

/* Make a context current temporarily, unless it already is: -1 if impossible, else the argument for `leave`. */
int device_enter(uint8_t context);
void device_leave(int entered);

/* A context, or the primary context of a device, is gone; its handle may be reused. */
void device_forget(Context context);
void device_forget_primary(int device);

/* A forked child has no contexts: CUDA contexts are not inherited. */
void device_fork(void);

/* The launch arguments of the stamping kernel. */
typedef struct {
    DevicePointer places;
    uint64_t told, mask;
    void *parameters[3];
} Arguments;

KernelNode device_stamp(const Device *device, uint64_t told, Arguments *arguments);

/* A kernel that holds back the work enqueued after it until that gate is opened. After GATE_NS it opens the gate
 * itself. */
enum { GATE_NS = 250000 };
KernelNode device_gate(const Device *device, uint64_t gate, Arguments *arguments);

/* A kernel that tells the device's time: at its start, and again each time the board asks for it, until the last of the
 * questions that it is to answer. It ends after ANSWERS_NS at the latest. */
enum { ANSWERS_NS = 200000 };
KernelNode device_answers(uint8_t context, uint64_t first, uint64_t last, Arguments *arguments);

/* A kernel that does nothing. */
KernelNode device_nothing(const Device *device);

#endif
