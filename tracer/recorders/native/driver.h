/* The part of the CUDA driver API that the recorder needs, declared here so that building it needs no CUDA toolkit.
 *
 * Source: NVIDIA, "CUDA Driver API" reference manual (docs.nvidia.com/cuda/cuda-driver-api), versions 10.0 to 13.0:
 * data types, graph management, stream management, memory management and driver entry point access.
 */
#ifndef INTERTOKEN_DRIVER_H
#define INTERTOKEN_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int Result;
typedef unsigned long long DevicePointer;
typedef struct Context_ *Context;
typedef struct Stream_ *Stream;
typedef struct Event_ *Event;
typedef struct Function_ *Function;
typedef struct Module_ *Module;
typedef struct Library_ *Library;
typedef struct Array_ *Array;
typedef struct Graph_ *Graph;
typedef struct Node_ *Node;
typedef struct Exec_ *Exec;
typedef void (*HostFunction)(void *);
typedef void (*StreamCallback)(Stream, Result, void *);

enum { SUCCESS = 0, ERROR_INVALID_VALUE = 1, ERROR_OUT_OF_MEMORY = 2 };
enum { ERROR_NOT_READY = 600, ERROR_NOT_SUPPORTED = 801 };

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    Stream stream;
    void *attributes;
    unsigned attribute_count;
} LaunchConfig;

/* CUDA_MEMCPY2D and CUDA_MEMCPY3D; that of copies between contexts differs only in reserved members. */
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };

typedef struct {
    size_t x, y;
    unsigned type;
    const void *host;
    DevicePointer device;
    Array array;
    size_t pitch;
} Place2D;

typedef struct {
    Place2D src, dst;
    size_t width, height;
} Copy2D;

typedef struct {
    size_t x, y, z, lod;
    unsigned type;
    const void *host;
    DevicePointer device;
    Array array;
    void *context;
    size_t pitch, height;
} Place3D;

typedef struct {
    Place3D src, dst;
    size_t width, height, depth;
} Copy3D;

typedef struct {
    Function function;
    unsigned grid[3], block[3], shared_bytes;
    void **parameters, **extra;
} KernelNode; /* CUDA_KERNEL_NODE_PARAMS_v1 */

typedef struct {
    uint64_t flags;
    Stream upload_stream;
    Node error_node;
    int result;
} InstantiateParams;

typedef struct {
    int result;
    Node error_node, error_from;
} UpdateResult;

enum { NODE_GRAPH = 4, NODE_MEM_ALLOC = 10, NODE_MEM_FREE = 11, NODE_CONDITIONAL = 13, NODE_LAST_KNOWN = 13 };
enum { INSTANTIATE_DEVICE_LAUNCH = 4 };
enum { LEGACY_STREAM = 1, PER_THREAD_DEFAULT_STREAM = 2 }; /* CUdriverProcAddress_flags */
enum { CAPTURE_NONE = 0, CAPTURE_MODE_RELAXED = 2 };
enum { HOST_REGISTER_PORTABLE = 1, HOST_REGISTER_DEVICEMAP = 2 };

#endif
