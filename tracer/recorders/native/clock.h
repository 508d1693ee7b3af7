/* Brackets of the device's clock: ticks of the host before and after the device read it, so that both bounds of the
 * clocks' difference are known, whatever the program waits for.
 *
 * A kernel of one thread on a stream of our own answers a burst of questions, each asked and answered through memory that
 * both sides map (`Board`). Nothing of the program's is waited for, and no call of the driver waits.
 *
 * The first burst of a context is made while its stamps are loaded. Others follow at most once a second, while calls are
 * recorded: from a thread of our own, which exists only then; where none can be made, from the thread of such a call. The
 * last is made before the process exits or the context is destroyed. Where work of ours would be queued in front of the
 * program's (MPS, one hardware queue), there is only the first. */
#ifndef INTERTOKEN_CLOCK_H
#define INTERTOKEN_CLOCK_H

#include "ring.h"

/* Read what the environment says of hardware queues. Call it before any other thread runs. */
void clock_find(void);

/* A context, which is current, has its kernels: take its first bracket. */
void clock_start(uint8_t context);

/* Now and then, after a recorded call. */
void clock_due(int64_t now);

/* Before and after a call that may destroy contexts: no burst is made meanwhile. Takes a last bracket of the context, or of
 * all contexts of a device. */
void clock_hold_context(uint8_t context);
void clock_hold_device(int device);
void clock_release(void);

/* A context is gone. */
void clock_forget(uint8_t context);

/* A forked child has neither contexts nor the thread. */
void clock_fork(void);

#endif
