/* Contexts and what is loaded into them; the driver's functions that only we call. */
#ifndef INTERTOKEN_DEVICE_H
#define INTERTOKEN_DEVICE_H

#include "driver.h"
#include "ring.h"

/* Found when the first context is. */
#define DRIVER_CALLS(X)                                                                                               \
    X(cuCtxGetCurrent, (Context *))                                                                                   \
    X(cuCtxGetDevice, (int *))                                                                                        \
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
} Driver;

typedef struct {
    Context context;
    Function stamp; /* NULL: no stamps in this context */
    DevicePointer places;
} Device;

extern Device devices[CONTEXTS];

const Driver *device_driver(void);

/* The place of the calling thread's context in the header; NO_CONTEXT if it has none, or there are too many. */
uint8_t device_context(void);

/* The current context with the stamping kernel loaded; NULL if it can have none. */
Device *device_with_stamps(void);

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

#endif
