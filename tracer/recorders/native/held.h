/* While something is done that must not be left by halves, the calling thread takes no signals and is not cancelled: a
 * handler might call the driver, jump away, or wait for a lock of ours. */
#ifndef INTERTOKEN_HELD_H
#define INTERTOKEN_HELD_H

#include <signal.h>

typedef struct {
    sigset_t signals;
    int cancels, error;
} Held;

void hold(Held *held);

/* Also restores errno. */
void release(const Held *held);

#endif
