/* Recording through CUPTI instead of wrapping the driver, if the recorder's folder has a file `cupti` with settings.
 *
 * CUDA_INJECTION64_PATH names this library; the driver calls InitializeInjection within cuInit, so that CUPTI is set up
 * before the program's first CUDA call, as graph-level tracing needs. Beside the ring of the process, which then holds
 * only its NVTX ranges, there is a file of blocks, `RING.cupti`; `tracer/recorders/cupti_run.py` reads it.
 *
 * Source of types and numbers: cupti_activity.h, cupti_callbacks.h and cupti_result.h of CUDA 12.0 to 13.5.
 */
#ifndef INTERTOKEN_CUPTI_H
#define INTERTOKEN_CUPTI_H

#include <stddef.h>
#include <stdint.h>

typedef void (*CuptiRequest)(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void (*CuptiComplete)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

/* The functions of libcupti that are needed, and those that only newer versions have. */
#define CUPTI_FUNCTIONS(X)                                                                                            \
    X(GetVersion, (uint32_t *))                                                                                       \
    X(GetResultString, (int, const char **))                                                                          \
    X(GetCallbackName, (int, uint32_t, const char **))                                                                \
    X(SetThreadIdType, (int))                                                                                         \
    X(ActivitySetAttribute, (int, size_t *, void *))                                                                  \
    X(ActivityRegisterCallbacks, (CuptiRequest, CuptiComplete))                                                       \
    X(ActivityEnable, (int))                                                                                          \
    X(ActivityGetNextRecord, (uint8_t *, size_t, void **))                                                            \
    X(ActivityGetNumDroppedRecords, (void *, uint32_t, size_t *))                                                     \
    X(ActivityFlushAll, (uint32_t))
#define CUPTI_NEWER(X)                                                                                                \
    X(ActivityGetStructSize, (int, uint32_t, size_t *))                                                               \
    X(ActivityEnableDriverApi, (uint32_t, uint8_t))                                                                   \
    X(ActivityEnableRuntimeApi, (uint32_t, uint8_t))

typedef struct {
#define X(name, params) int(*name) params;
    CUPTI_FUNCTIONS(X) CUPTI_NEWER(X)
#undef X
} Cupti;

extern Cupti cupti;

enum { CUPTI_DRIVER_CALLS = 1, CUPTI_RUNTIME_CALLS = 2 }; /* CUpti_CallbackDomain */

/* A block of the file: this head, then `bytes` bytes. `about` is the version of CUPTI's interface; of records, the turn
 * of recording in which their buffer was handed out; the address of a text; domain << 32 | id of a call, whose name
 * follows; the result of a function that failed, described by the text; kind << 32 | size of the records of a kind. */
enum CuptiBlock { CUPTI_VERSION = 1, CUPTI_RECORDS, CUPTI_TEXT, CUPTI_CALL, CUPTI_FAILED, CUPTI_SIZE };
typedef struct {
    uint32_t kind, bytes;
    uint64_t about;
} CuptiHead;

/* Read the settings, if any; returns whether CUPTI records instead of our wrappers, not beside them
 * (benchmarks/light_beside_cupti.py). Call it before any other thread runs. */
int cupti_alone(void);

/* The functions with which a process ends without exit handlers, as they are without us. Call it in the constructor. */
void cupti_find_endings(void *end, void *end_as_well);

/* A forked child starts anew. */
void cupti_fork(void);

/* The buffers that CUPTI fills (cupti_buffers.c): prepare some, the two callbacks, and the number that CUPTI has. */
void cupti_buffers_start(void);
void cupti_buffers_fork(void);
void cupti_request(uint8_t **buffer, size_t *size, size_t *most_records);
void cupti_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
uint64_t cupti_buffers_given(void);

/* Write a block with a text. */
void cupti_write(enum CuptiBlock kind, uint64_t about, const char *text);

#endif
