/* Contexts and what is loaded into them; the driver's functions that only we call. */
#ifndef INTERTOKEN_DEVICE_H
#define INTERTOKEN_DEVICE_H

#include "driver.h"
#include "ring.h"

/* Found when the first context is. */
#define DRIVER_CALLS(X)                                                                                               \
    X(cuCtxGetCurrent, (Context *))                                                                                   \
    X(cuCtxGetDevice, (int *))                                                                                        \
    X(cuCtxPushCurrent_v2, (Context))                                                                                 \
    X(cuCtxPopCurrent_v2, (Context *))                                                                                \
    X(cuDevicePrimaryCtxGetState, (int, unsigned *, int *))                                                           \
    X(cuDeviceGetName, (char *, int, int))                                                                            \
    X(cuThreadExchangeStreamCaptureMode, (int *))                                                                     \
    X(cuStreamIsCapturing, (Stream, int *))                                                                           \
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

typedef struct {
#define X(name, params) Result(*name) params;
    DRIVER_CALLS(X)
#undef X
    int stamps_graphs, stamps_runs; /* whether graphs, and runs of launches, are to get stamps */
    uint64_t inside;                /* µs between parts of runs that get stamps inside, in the mean; 0: none does */
} Driver;

typedef struct {
    Context context;
    Function stamp; /* NULL: no stamps in this context */
    Function gate, nothing;
    DevicePointer places, chain; /* where it writes: what the program does, and how long a stamp takes */
    _Atomic uint64_t *opened;    /* up to which number gates are open; behind it, which the device opened itself last */
    _Atomic uint64_t gates;      /* how many there were */
} Device;

extern Device devices[CONTEXTS];

const Driver *device_driver(void);

/* The place of the calling thread's context in the header; NO_CONTEXT if it has none, or there are too many. */
uint8_t device_context(void);

/* The same of another context; NO_CONTEXT if it is none of those that are known. */
uint8_t device_of(Context context);

/* How many contexts are known; those from 0 on. */
unsigned device_count(void);

/* A context, which is current, with the stamping kernel loaded; NULL if it can have none. */
Device *device_with_stamps(uint8_t context);

/* Make a context current for a moment, which it mostly is already: -1 if it cannot be, else what `leave` is given. */
int device_enter(uint8_t context);
void device_leave(int entered);

/* A context is gone, or all of a device that has none any more: its handle may come again for another. */
void device_forget(Context context);
void device_forget_primary(int device);

/* A forked child has no contexts: CUDA gives it none of its parent's. */
void device_fork(void);

/* What the stamping kernel is launched with. */
typedef struct {
    DevicePointer places;
    uint64_t told, mask;
    void *parameters[3];
} Arguments;

KernelNode device_stamp(const Device *device, uint64_t told, Arguments *arguments);

/* A kernel that holds back what is put behind it until that gate is opened, but for no longer than GATE_NS: then it
 * opens it itself. */
enum { GATE_NS = 250000 };
KernelNode device_gate(const Device *device, uint64_t gate, Arguments *arguments);

/* A kernel that does nothing. */
KernelNode device_nothing(const Device *device);

#endif
