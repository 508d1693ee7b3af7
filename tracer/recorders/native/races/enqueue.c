/* The wrappers of all calls that no other file here defines: those that put work on a stream do so with its lock. */
#include "races.h"

/* Definitions of other files come before these. */
#define WEAK __attribute__((weak))

enum What { A_LAUNCH, DATA, ANYTHING };

static StreamState *enter(enum What what, Stream given) {
    StreamState *stream = stream_of(given);
    if (!stream) return NULL;
    int captures = stream_is_capturing(given);
    stream_enter(stream);
    if (captures) return stream;
    if (what != ANYTHING) delays_hold(stream);
    if (what == A_LAUNCH) delay(KIND_LAUNCH, stream, NULL);
    return stream;
}

#define is_null(on) (__builtin_strcmp(on, "NULL") == 0)

#define WRAP(id, what, own, params, args, on)                                                                         \
    WEAK Result id params {                                                                                           \
        REAL(id, params);                                                                                             \
        if (!real) return ERROR_NOT_SUPPORTED;                                                                        \
        if (is_null(#on) || !races_on()) return real args;                                                            \
        Inside before = inside();                                                                                     \
        StreamState *on_ = enter(what, stream_given((Stream)(on), own));                                              \
        outside(before);                                                                                              \
        Result made = real args;                                                                                      \
        stream_leave(on_);                                                                                            \
        return made;                                                                                                  \
    }
#define LAUNCH(id, symbol, since, own, params, args, on, about, size, kind, how)                                      \
    WRAP(id, A_LAUNCH, own, params, args, on)
#define COPY(id, symbol, since, own, params, args, on, about, size, kind, how)                                        \
    WRAP(id, DATA, own, params, args, on)
#define OTHER(id, symbol, since, own, params, args, on, about, size, kind, how)                                       \
    WRAP(id, ANYTHING, own, params, args, on)

LAUNCH_CALLS(LAUNCH)
GRAPH_CALLS(OTHER)
WAIT_CALLS(OTHER)
VALUE_CALLS(OTHER)
COPY_CALLS(COPY)
SHAPED_COPY_CALLS(COPY)
FILL_CALLS(COPY)
CONTEXT_CALLS(OTHER)
PROFILER_CALLS(OTHER)
NAME_CALLS(OTHER)
MEMORY_CALLS(OTHER)
