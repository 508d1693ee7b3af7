/* Calls by which the host waits, or streams wait for each other; and host functions and values that order them. */
#include "races.h"

/* The host waits, perhaps later than it would; it does not ask later. */
static Inside before_wait(int waits) {
    Inside before = inside();
    if (waits) delay(KIND_SYNC, NULL, NULL);
    return before;
}

#define STREAM_WAIT(id, own, waits)                                                                                   \
    Result id(Stream s) {                                                                                             \
        Covered covered;                                                                                              \
        REAL(id, (Stream));                                                                                           \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!races_on()) return real(s);                                                                              \
        Inside before = before_wait(waits);                                                                           \
        cover_stream(stream_of(stream_given(s, own)), &covered);                                                      \
        outside(before);                                                                                              \
        Result result = real(s);                                                                                      \
        before = inside();                                                                                            \
        if (result == SUCCESS) waited_for(&covered);                                                                  \
        outside(before);                                                                                              \
        return result;                                                                                                \
    }
STREAM_WAIT(cuStreamSynchronize, 0, 1)
STREAM_WAIT(cuStreamSynchronize_ptsz, 1, 1)
STREAM_WAIT(cuStreamQuery, 0, 0)
STREAM_WAIT(cuStreamQuery_ptsz, 1, 0)

#define EVENT_WAIT(id, waits)                                                                                         \
    Result id(Event v) {                                                                                              \
        Covered covered;                                                                                              \
        REAL(id, (Event));                                                                                            \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!races_on()) return real(v);                                                                              \
        Inside before = before_wait(waits);                                                                           \
        cover_event(v, &covered);                                                                                     \
        outside(before);                                                                                              \
        Result result = real(v);                                                                                      \
        before = inside();                                                                                            \
        if (result == SUCCESS) waited_for(&covered);                                                                  \
        outside(before);                                                                                              \
        return result;                                                                                                \
    }
EVENT_WAIT(cuEventSynchronize, 1)
EVENT_WAIT(cuEventQuery, 0)

/* Also of another context: with several, results of all count as waited for. */
#define CONTEXT_WAIT(id, params, args)                                                                                \
    Result id params {                                                                                                \
        Covered covered;                                                                                              \
        REAL(id, params);                                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!races_on()) return real args;                                                                            \
        Inside before = before_wait(1);                                                                               \
        cover_all(&covered);                                                                                          \
        outside(before);                                                                                              \
        Result result = real args;                                                                                    \
        before = inside();                                                                                            \
        if (result == SUCCESS) waited_for(&covered);                                                                  \
        outside(before);                                                                                              \
        return result;                                                                                                \
    }
CONTEXT_WAIT(cuCtxSynchronize, (void), ())
CONTEXT_WAIT(cuCtxSynchronize_v2, (Context c), (c))

/* A call on a stream, with its lock, and something noted with it. */
#define NOTED(id, own, params, args, note)                                                                            \
    Result id params {                                                                                                \
        REAL(id, params);                                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!races_on()) return real args;                                                                            \
        Inside before = inside();                                                                                     \
        StreamState *stream = stream_of(stream_given(s, own));                                                        \
        if (stream) stream_enter(stream);                                                                             \
        outside(before);                                                                                              \
        Result result = real args;                                                                                    \
        if (stream && result == SUCCESS) note;                                                                        \
        stream_leave(stream);                                                                                         \
        return result;                                                                                                \
    }

NOTED(cuEventRecord, 0, (Event v, Stream s), (v, s), streams_record(stream, v))
NOTED(cuEventRecord_ptsz, 1, (Event v, Stream s), (v, s), streams_record(stream, v))
NOTED(cuEventRecordWithFlags, 0, (Event v, Stream s, unsigned flags), (v, s, flags), streams_record(stream, v))
NOTED(cuEventRecordWithFlags_ptsz, 1, (Event v, Stream s, unsigned flags), (v, s, flags), streams_record(stream, v))
NOTED(cuStreamWaitEvent, 0, (Stream s, Event v, unsigned flags), (s, v, flags), streams_wait(stream, v))
NOTED(cuStreamWaitEvent_ptsz, 1, (Stream s, Event v, unsigned flags), (s, v, flags), streams_wait(stream, v))

#define GATED(id, own, bits)                                                                                          \
    NOTED(id, own, (Stream s, DevicePointer d, uint##bits##_t v, unsigned flags), (s, d, v, flags),                   \
          stream->is_gated = 1)
GATED(cuStreamWaitValue32, 0, 32)
GATED(cuStreamWaitValue32_ptsz, 1, 32)
GATED(cuStreamWaitValue64, 0, 64)
GATED(cuStreamWaitValue64_ptsz, 1, 64)
GATED(cuStreamWaitValue32_v2, 0, 32)
GATED(cuStreamWaitValue32_v2_ptsz, 1, 32)
GATED(cuStreamWaitValue64_v2, 0, 64)
GATED(cuStreamWaitValue64_v2_ptsz, 1, 64)

/* A batch may wait, too. */
#define BATCH(id, own)                                                                                                \
    NOTED(id, own, (Stream s, unsigned count, void *all, unsigned flags), (s, count, all, flags), stream->is_gated = 1)
BATCH(cuStreamBatchMemOp, 0)
BATCH(cuStreamBatchMemOp_ptsz, 1)
BATCH(cuStreamBatchMemOp_v2, 0)
BATCH(cuStreamBatchMemOp_v2_ptsz, 1)

/* A function of the host may fill a source in stream order. */
#define HOST_FUNCTION(id, own, params, args)                                                                          \
    Result id params {                                                                                                \
        REAL(id, params);                                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (!races_on()) return real args;                                                                            \
        Inside before = inside();                                                                                     \
        Stream given = stream_given(s, own);                                                                          \
        StreamState *stream = stream_of(given);                                                                       \
        int captures = stream_is_capturing(given);                                                                    \
        if (stream) stream_enter(stream);                                                                             \
        if (!captures) delays_hold(stream);                                                                           \
        if (stream && !captures) stream->host_function = stream->enqueued;                                            \
        outside(before);                                                                                              \
        Result result = real args;                                                                                    \
        stream_leave(stream);                                                                                         \
        return result;                                                                                                \
    }
HOST_FUNCTION(cuLaunchHostFunc, 0, (Stream s, HostFunction f, void *d), (s, f, d))
HOST_FUNCTION(cuLaunchHostFunc_ptsz, 1, (Stream s, HostFunction f, void *d), (s, f, d))
HOST_FUNCTION(cuStreamAddCallback, 0, (Stream s, StreamCallback f, void *d, unsigned flags), (s, f, d, flags))
HOST_FUNCTION(cuStreamAddCallback_ptsz, 1, (Stream s, StreamCallback f, void *d, unsigned flags), (s, f, d, flags))

#define DESTROY(id)                                                                                                   \
    Result id(Stream s) {                                                                                             \
        REAL(id, (Stream));                                                                                           \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (races_on()) streams_forget(s);                                                                            \
        return real(s);                                                                                               \
    }
DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)
