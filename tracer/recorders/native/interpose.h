/* How calls of the driver are intercepted, and how we call the driver itself. */
#ifndef INTERTOKEN_INTERPOSE_H
#define INTERTOKEN_INTERPOSE_H

#include "calls.h"
#include "ring.h"

#define EXPORT __attribute__((visibility("default")))

/* The function that a call reaches without us: the driver's, or that of another interposing library loaded after ours;
 * NULL without a driver. */
extern _Atomic(void *) real_calls[CALL_COUNT];
void *interpose_find(enum Call call) __attribute__((cold));

static inline void *real_call(enum Call call) {
    void *real = atomic_load_explicit(&real_calls[call], memory_order_acquire);
    return real ? real : interpose_find(call);
}

/* The same for any exported name. */
void *interpose_driver(const char *name);

/* Whether a recorder is running. */
int interpose_wanted(void);

static inline int ring_there(void) { return ring.header ? ring.wraps : ring_reached(); }

static inline int recording(void) { return ring_there() && !(ring_turn() & 1); }

#define CALL(id, symbol, since, own, params, ...) EXPORT Result id params;
CALLS
#undef CALL

#endif
