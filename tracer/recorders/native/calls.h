/* The recorded calls, all defined here.
 *
 * CALL(exported name, name for cuGetProcAddress, first version of this interface, 1 for the per-thread default stream,
 *      parameters, arguments, stream, object, bytes, kind of copy, action)
 * `object` is the kernel, event or graph of the call; for launches `bytes` is the number of blocks; kinds of copies are
 * numbered as in CUPTI.
 * Actions: PLAIN none; LAUNCH opens a run of launches on its stream; END ends that run; FORGET does, where the stream
 * is destroyed or waits for another one, so that when it goes on does not follow from the work before; END_ALL ends the
 * runs of the thread's context and waits; END_OTHER ends those of the context `c`; WAIT waits; END_WAIT does both; ASK
 * queries whether a stream's work has ended, ASK_EVENT an event's; BESIDE is part of a run, as launches are; OWN has a
 * hand-written wrapper (graphs.c, contexts.c, names.c, callbacks.c).
 * Versions are those of the driver's typedefs (cudaTypedefs.h).
 */
#ifndef INTERTOKEN_CALLS_H
#define INTERTOKEN_CALLS_H

#include "driver.h"
#ifdef INTERTOKEN_RACES
#include "races/memory.h"
#else
#define MEMORY_CALLS(X) /* of the races library alone */
#endif

enum { COPY_UNKNOWN, HTOD, DTOH, HTOA, ATOH, ATOA, ATOD, DTOA, DTOD, HTOH, PTOP };

/* A call and its variant for the per-thread default stream. */
#define BOTH(X, name, suffix, symbol, since, since_own, ...)                                                          \
    X(name, symbol, since, 0, __VA_ARGS__)                                                                            \
    X(name##suffix, symbol, since_own, 1, __VA_ARGS__)

#define P(...) (__VA_ARGS__)
#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define BLOCKS (uint64_t)gx * gy * gz

#define CALLS                                                                                                         \
    LAUNCH_CALLS(CALL) GRAPH_CALLS(CALL) WAIT_CALLS(CALL) VALUE_CALLS(CALL) COPY_CALLS(CALL) SHAPED_COPY_CALLS(CALL) FILL_CALLS(CALL)   \
    CONTEXT_CALLS(CALL) PROFILER_CALLS(CALL) NAME_CALLS(CALL) MEMORY_CALLS(CALL)

#define LAUNCH_CALLS(X)                                                                                               \
    BOTH(X, cuLaunchKernel, _ptsz, "cuLaunchKernel", 4000, 7000, P(Function f, GRID, Stream s, void **p, void **e),   \
         P(f, gx, gy, gz, bx, by, bz, shared, s, p, e), s, f, BLOCKS, 0, LAUNCH)                                      \
    BOTH(X, cuLaunchKernelEx, _ptsz, "cuLaunchKernelEx", 11060, 11060,                                                \
         P(const LaunchConfig *c, Function f, void **p, void **e), P(c, f, p, e), c ? c->stream : NULL, f,            \
         c ? (uint64_t)c->grid[0] * c->grid[1] * c->grid[2] : 0, 0, LAUNCH)                                           \
    BOTH(X, cuLaunchCooperativeKernel, _ptsz, "cuLaunchCooperativeKernel", 9000, 9000,                                \
         P(Function f, GRID, Stream s, void **p), P(f, gx, gy, gz, bx, by, bz, shared, s, p), s, f, BLOCKS,           \
         0, LAUNCH)                                                                                                   \
    X(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000, 0,                          \
      P(void *list, unsigned count, unsigned flags), P(list, count, flags), NULL, NULL, 0, 0, PLAIN)                  \
    X(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, 0, P(Function f, int w, int h, Stream s), P(f, w, h, s), s, f,    \
      (uint64_t)w * (uint64_t)h, 0, LAUNCH)                                                                           \
    BOTH(X, cuLaunchHostFunc, _ptsz, "cuLaunchHostFunc", 10000, 10000, P(Stream s, HostFunction f, void *d),          \
         P(s, f, d), s, NULL, 0, 0, OWN)                                                                              \
    BOTH(X, cuStreamAddCallback, _ptsz, "cuStreamAddCallback", 5000, 7000,                                            \
         P(Stream s, StreamCallback f, void *d, unsigned flags), P(s, f, d, flags), s, NULL, 0, 0, OWN)

#define GRAPH_CALLS(X)                                                                                                \
    BOTH(X, cuGraphLaunch, _ptsz, "cuGraphLaunch", 10000, 10000, P(Exec x, Stream s), P(x, s), s, x, 0, 0, OWN)       \
    X(cuGraphInstantiate, "cuGraphInstantiate", 10000, 0, P(Exec *x, Graph g, Node *n, char *log, size_t size),       \
      P(x, g, n, log, size), NULL, *x, 0, 0, OWN)                                                                     \
    X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, 0, P(Exec *x, Graph g, Node *n, char *log, size_t size),    \
      P(x, g, n, log, size), NULL, *x, 0, 0, OWN)                                                                     \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, 0,                                           \
      P(Exec *x, Graph g, unsigned long long flags), P(x, g, flags), NULL, *x, 0, 0, OWN)                             \
    BOTH(X, cuGraphInstantiateWithParams, _ptsz, "cuGraphInstantiateWithParams", 12000, 12000,                        \
         P(Exec *x, Graph g, InstantiateParams *how), P(x, g, how), NULL, *x, 0, 0, OWN)                              \
    X(cuGraphExecUpdate, "cuGraphExecUpdate", 10020, 0, P(Exec x, Graph g, Node *n, int *result), P(x, g, n, result), \
      NULL, x, 0, 0, OWN)                                                                                             \
    X(cuGraphExecUpdate_v2, "cuGraphExecUpdate", 12000, 0, P(Exec x, Graph g, UpdateResult *result),                  \
      P(x, g, result), NULL, x, 0, 0, OWN)                                                                            \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, 0, P(Exec x), P(x), NULL, x, 0, 0, OWN)                        \
    BOTH(X, cuGraphUpload, _ptsz, "cuGraphUpload", 11010, 11010, P(Exec x, Stream s), P(x, s), s, x, 0, 0, PLAIN)     \
    BOTH(X, cuStreamBeginCapture, _ptsz, "cuStreamBeginCapture", 10000, 10000, P(Stream s), P(s), s, NULL, 0, 0, END) \
    BOTH(X, cuStreamBeginCapture_v2, _ptsz, "cuStreamBeginCapture", 10010, 10010, P(Stream s, int mode), P(s, mode),  \
         s, NULL, 0, 0, END)                                                                                          \
    BOTH(X, cuStreamBeginCaptureToGraph, _ptsz, "cuStreamBeginCaptureToGraph", 12030, 12030,                          \
         P(Stream s, Graph g, const Node *n, const void *e, size_t count, int mode), P(s, g, n, e, count, mode),      \
         s, NULL, 0, 0, END)                                                                                          \
    BOTH(X, cuStreamEndCapture, _ptsz, "cuStreamEndCapture", 10000, 10000, P(Stream s, Graph *g), P(s, g), s, NULL,   \
         0, 0, PLAIN)

#define WAIT_CALLS(X)                                                                                                 \
    BOTH(X, cuStreamSynchronize, _ptsz, "cuStreamSynchronize", 2000, 7000, P(Stream s), P(s), s, NULL, 0, 0, END_WAIT)\
    BOTH(X, cuStreamQuery, _ptsz, "cuStreamQuery", 2000, 7000, P(Stream s), P(s), s, NULL, 0, 0, ASK)                 \
    X(cuStreamDestroy, "cuStreamDestroy", 2000, 0, P(Stream s), P(s), s, NULL, 0, 0, FORGET)                          \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0, P(Stream s), P(s), s, NULL, 0, 0, FORGET)                       \
    BOTH(X, cuStreamWaitEvent, _ptsz, "cuStreamWaitEvent", 3020, 7000, P(Stream s, Event v, unsigned flags),          \
         P(s, v, flags), s, v, 0, 0, FORGET)                                                                          \
    BOTH(X, cuEventRecord, _ptsz, "cuEventRecord", 2000, 7000, P(Event v, Stream s), P(v, s), s, v, 0, 0, END)        \
    BOTH(X, cuEventRecordWithFlags, _ptsz, "cuEventRecordWithFlags", 11010, 11010,                                    \
         P(Event v, Stream s, unsigned flags), P(v, s, flags), s, v, 0, 0, END)                                       \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, 0, P(Event v), P(v), NULL, v, 0, 0, WAIT)                       \
    X(cuEventQuery, "cuEventQuery", 2000, 0, P(Event v), P(v), NULL, v, 0, 0, ASK_EVENT)                              \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0, P(void), P(), NULL, NULL, 0, 0, END_ALL)                         \
    X(cuCtxSynchronize_v2, "cuCtxSynchronize", 13000, 0, P(Context c), P(c), NULL, NULL, 0, 0, END_OTHER)             \
    X(cuCtxRecordEvent, "cuCtxRecordEvent", 12050, 0, P(Context c, Event v), P(c, v), NULL, v, 0, 0, END_OTHER)       \
    X(cuCtxWaitEvent, "cuCtxWaitEvent", 12050, 0, P(Context c, Event v), P(c, v), NULL, v, 0, 0, PLAIN)

/* By which a stream waits for a value in memory, or writes one, for which others may wait. */
#define VALUE(X, name, suffix, bits, since, how)                                                                      \
    BOTH(X, name##bits##suffix, _ptsz, #name #bits, since, since,                                                     \
         P(Stream s, DevicePointer d, uint##bits##_t v, unsigned flags), P(s, d, v, flags), s, NULL, 0, 0, how)
#define VALUE_CALLS(X)                                                                                                \
    VALUE(X, cuStreamWaitValue, , 32, 8000, PLAIN) VALUE(X, cuStreamWaitValue, , 64, 9000, PLAIN)                     \
    VALUE(X, cuStreamWriteValue, , 32, 8000, END) VALUE(X, cuStreamWriteValue, , 64, 9000, END)                       \
    VALUE(X, cuStreamWaitValue, _v2, 32, 11070, PLAIN) VALUE(X, cuStreamWaitValue, _v2, 64, 11070, PLAIN)             \
    VALUE(X, cuStreamWriteValue, _v2, 32, 11070, END) VALUE(X, cuStreamWriteValue, _v2, 64, 11070, END)               \
    BOTH(X, cuStreamBatchMemOp, _ptsz, "cuStreamBatchMemOp", 8000, 8000,                                              \
         P(Stream s, unsigned count, void *all, unsigned flags), P(s, count, all, flags), s, NULL, 0, 0, END)         \
    BOTH(X, cuStreamBatchMemOp_v2, _ptsz, "cuStreamBatchMemOp", 11070, 11070,                                         \
         P(Stream s, unsigned count, void *all, unsigned flags), P(s, count, all, flags), s, NULL, 0, 0, END)

/* Copies: blocking ones end all runs of the context, asynchronous copies to the host end the run of their stream. */
#define BLOCKING(X, name, symbol, params, args, size, kind)                                                           \
    BOTH(X, name, _ptds, symbol, 3020, 7000, params, args, NULL, NULL, size, kind, END_ALL)
#define ASYNC(X, name, symbol, params, args, size, kind, hook)                                                        \
    BOTH(X, name, _ptsz, symbol, 3020, 7000, params, args, s, NULL, size, kind, hook)

#define COPY_CALLS(X)                                                                                                 \
    BOTH(X, cuMemcpy, _ptds, "cuMemcpy", 4000, 7000, P(DevicePointer d, DevicePointer f, size_t n), P(d, f, n), NULL, \
         NULL, n, 0, END_ALL)                                                                                         \
    BOTH(X, cuMemcpyAsync, _ptsz, "cuMemcpyAsync", 4000, 7000,                                                        \
         P(DevicePointer d, DevicePointer f, size_t n, Stream s), P(d, f, n, s), s, NULL, n, 0, BESIDE)               \
    BOTH(X, cuMemcpyPeer, _ptds, "cuMemcpyPeer", 4000, 7000,                                                          \
         P(DevicePointer d, Context dc, DevicePointer f, Context fc, size_t n), P(d, dc, f, fc, n), NULL, NULL, n,    \
         PTOP, END_ALL)                                                                                               \
    BOTH(X, cuMemcpyPeerAsync, _ptsz, "cuMemcpyPeerAsync", 4000, 7000,                                                \
         P(DevicePointer d, Context dc, DevicePointer f, Context fc, size_t n, Stream s), P(d, dc, f, fc, n, s), s,   \
         NULL, n, PTOP, BESIDE)                                                                                       \
    BLOCKING(X, cuMemcpyHtoD_v2, "cuMemcpyHtoD", P(DevicePointer d, const void *f, size_t n), P(d, f, n), n, HTOD)    \
    BLOCKING(X, cuMemcpyDtoH_v2, "cuMemcpyDtoH", P(void *d, DevicePointer f, size_t n), P(d, f, n), n, DTOH)          \
    BLOCKING(X, cuMemcpyDtoD_v2, "cuMemcpyDtoD", P(DevicePointer d, DevicePointer f, size_t n), P(d, f, n), n, DTOD)  \
    BLOCKING(X, cuMemcpyDtoA_v2, "cuMemcpyDtoA", P(Array d, size_t o, DevicePointer f, size_t n), P(d, o, f, n), n,   \
             DTOA)                                                                                                    \
    BLOCKING(X, cuMemcpyAtoD_v2, "cuMemcpyAtoD", P(DevicePointer d, Array f, size_t o, size_t n), P(d, f, o, n), n,   \
             ATOD)                                                                                                    \
    BLOCKING(X, cuMemcpyHtoA_v2, "cuMemcpyHtoA", P(Array d, size_t o, const void *f, size_t n), P(d, o, f, n), n,     \
             HTOA)                                                                                                    \
    BLOCKING(X, cuMemcpyAtoH_v2, "cuMemcpyAtoH", P(void *d, Array f, size_t o, size_t n), P(d, f, o, n), n, ATOH)     \
    BLOCKING(X, cuMemcpyAtoA_v2, "cuMemcpyAtoA", P(Array d, size_t o, Array f, size_t q, size_t n), P(d, o, f, q, n), \
             n, ATOA)                                                                                                 \
    ASYNC(X, cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", P(DevicePointer d, const void *f, size_t n, Stream s),        \
          P(d, f, n, s), n, HTOD, BESIDE)                                                                             \
    ASYNC(X, cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", P(void *d, DevicePointer f, size_t n, Stream s),              \
          P(d, f, n, s), n, DTOH, END)                                                                                \
    ASYNC(X, cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", P(DevicePointer d, DevicePointer f, size_t n, Stream s),      \
          P(d, f, n, s), n, DTOD, BESIDE)                                                                             \
    ASYNC(X, cuMemcpyHtoAAsync_v2, "cuMemcpyHtoAAsync", P(Array d, size_t o, const void *f, size_t n, Stream s),      \
          P(d, o, f, n, s), n, HTOA, BESIDE)                                                                          \
    ASYNC(X, cuMemcpyAtoHAsync_v2, "cuMemcpyAtoHAsync", P(void *d, Array f, size_t o, size_t n, Stream s),            \
          P(d, f, o, n, s), n, ATOH, END)

#define SHAPED_COPY_CALLS(X)                                                                                          \
    BLOCKING(X, cuMemcpy2D_v2, "cuMemcpy2D", P(const Copy2D *c), P(c), bytes_2d(c), kind_2d(c))                       \
    BLOCKING(X, cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", P(const Copy2D *c), P(c), bytes_2d(c), kind_2d(c))     \
    BLOCKING(X, cuMemcpy3D_v2, "cuMemcpy3D", P(const Copy3D *c), P(c), bytes_3d(c), kind_3d(c))                       \
    BOTH(X, cuMemcpy3DPeer, _ptds, "cuMemcpy3DPeer", 4000, 7000, P(const Copy3D *c), P(c), NULL, NULL, bytes_3d(c),   \
         PTOP, END_ALL)                                                                                               \
    ASYNC(X, cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", P(const Copy2D *c, Stream s), P(c, s), bytes_2d(c), kind_2d(c),   \
          BESIDE)                                                                                                     \
    ASYNC(X, cuMemcpy3DAsync_v2, "cuMemcpy3DAsync", P(const Copy3D *c, Stream s), P(c, s), bytes_3d(c), kind_3d(c),   \
          BESIDE)                                                                                                     \
    BOTH(X, cuMemcpy3DPeerAsync, _ptsz, "cuMemcpy3DPeerAsync", 4000, 7000, P(const Copy3D *c, Stream s), P(c, s), s,  \
         NULL, bytes_3d(c), PTOP, BESIDE)                                                                             \
    BOTH(X, cuMemcpyBatchAsync, _ptsz, "cuMemcpyBatchAsync", 12080, 12080,                                            \
         P(DevicePointer *d, DevicePointer *f, size_t *sizes, size_t count, void *attributes, size_t *indices,        \
           size_t attribute_count, size_t *failed, Stream s),                                                         \
         P(d, f, sizes, count, attributes, indices, attribute_count, failed, s), s, NULL, bytes_all(sizes, count), 0, \
         BESIDE)                                                                                                      \
    BOTH(X, cuMemcpyBatchAsync_v2, _ptsz, "cuMemcpyBatchAsync", 13000, 13000,                                         \
         P(DevicePointer *d, DevicePointer *f, size_t *sizes, size_t count, void *attributes, size_t *indices,        \
           size_t attribute_count, Stream s),                                                                         \
         P(d, f, sizes, count, attributes, indices, attribute_count, s), s, NULL, bytes_all(sizes, count), 0, BESIDE) \
    BOTH(X, cuMemcpy3DBatchAsync, _ptsz, "cuMemcpy3DBatchAsync", 12080, 12080,                                        \
         P(size_t count, void *list, size_t *failed, unsigned long long flags, Stream s),                             \
         P(count, list, failed, flags, s), s, NULL, 0, 0, BESIDE)                                                     \
    BOTH(X, cuMemcpy3DBatchAsync_v2, _ptsz, "cuMemcpy3DBatchAsync", 13000, 13000,                                     \
         P(size_t count, void *list, unsigned long long flags, Stream s), P(count, list, flags, s), s, NULL, 0, 0,    \
         BESIDE)

#define FILLS(X, bits, type)                                                                                          \
    BOTH(X, cuMemsetD##bits##_v2, _ptds, "cuMemsetD" #bits, 3020, 7000, P(DevicePointer d, type v, size_t n),         \
         P(d, v, n), NULL, NULL, n * (bits / 8), 0, PLAIN)                                                            \
    BOTH(X, cuMemsetD2D##bits##_v2, _ptds, "cuMemsetD2D" #bits, 3020, 7000,                                           \
         P(DevicePointer d, size_t pitch, type v, size_t w, size_t h), P(d, pitch, v, w, h), NULL, NULL,              \
         w * h * (bits / 8), 0, PLAIN)                                                                                \
    BOTH(X, cuMemsetD##bits##Async, _ptsz, "cuMemsetD" #bits "Async", 3020, 7000,                                     \
         P(DevicePointer d, type v, size_t n, Stream s), P(d, v, n, s), s, NULL, n * (bits / 8), 0, BESIDE)           \
    BOTH(X, cuMemsetD2D##bits##Async, _ptsz, "cuMemsetD2D" #bits "Async", 3020, 7000,                                 \
         P(DevicePointer d, size_t pitch, type v, size_t w, size_t h, Stream s), P(d, pitch, v, w, h, s), s, NULL,    \
         w * h * (bits / 8), 0, BESIDE)

#define FILL_CALLS(X) FILLS(X, 8, unsigned char) FILLS(X, 16, unsigned short) FILLS(X, 32, unsigned)

/* Calls that destroy contexts, including what we loaded into them. */
#define CONTEXT_CALLS(X)                                                                                              \
    X(cuCtxDestroy, "cuCtxDestroy", 2000, 0, P(Context c), P(c), NULL, NULL, 0, 0, OWN)                               \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0, P(Context c), P(c), NULL, NULL, 0, 0, OWN)                            \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0, P(int d), P(d), NULL, NULL, 0, 0, OWN)             \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0, P(int d), P(d), NULL, NULL, 0, 0, OWN)         \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0, P(int d), P(d), NULL, NULL, 0, 0, OWN)         \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0, P(int d), P(d), NULL, NULL, 0, 0, OWN)

/* Calls with which a program starts and stops a profiler. */
#define PROFILER_CALLS(X)                                                                                             \
    X(cuProfilerStart, "cuProfilerStart", 4000, 0, P(void), P(), NULL, NULL, 0, 0, OWN)                               \
    X(cuProfilerStop, "cuProfilerStop", 4000, 0, P(void), P(), NULL, NULL, 0, 0, OWN)

/* Calls that look up a kernel, which also is a function, or say its name (names.c); they are not recorded. */
#define NAME_CALLS(X)                                                                                                 \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, 0, P(Function *f, Module m, const char *name),                \
      P(f, m, name), NULL, *f, 0, 0, OWN)                                                                             \
    X(cuLibraryGetKernel, "cuLibraryGetKernel", 12000, 0, P(Function *k, Library l, const char *name),                \
      P(k, l, name), NULL, *k, 0, 0, OWN)                                                                             \
    X(cuKernelGetFunction, "cuKernelGetFunction", 12000, 0, P(Function *f, Function k), P(f, k), NULL, k, 0, 0, OWN)  \
    X(cuKernelGetName, "cuKernelGetName", 12030, 0, P(const char **name, Function k), P(name, k), NULL, k, 0, 0, OWN)

enum Call {
#define CALL(id, ...) CALL_##id,
    CALLS
#undef CALL
    CALL_COUNT
};

#endif
