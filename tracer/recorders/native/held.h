/* While something is done that must not be left by halves, the calling thread takes no signals and is not cancelled: a
 * handler might call the driver, jump away, or wait for a lock of ours. */
#ifndef INTERTOKEN_HELD_H
#define INTERTOKEN_HELD_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>

typedef struct {
    sigset_t signals;
    int cancels, error;
} Held;

void hold(Held *held);

/* Also restores errno. */
void release(const Held *held);

/* A lock of calls that must not take the time to hold signals. The handler of a signal may want it in the thread that has
 * it, and a handler that jumps away may leave it taken: who does not get it goes on without it, after a second if another
 * thread has it, and from then on at once. */
typedef struct {
    pthread_mutex_t mutex;
    _Atomic int is_lost;
} Lock;
#define LOCK_OPEN {PTHREAD_MUTEX_INITIALIZER, 0}

int lock_late(Lock *lock);

/* `is_mine` is the calling thread's; returns whether the lock was taken. */
static inline int lock_take(Lock *lock, uint8_t *is_mine) {
    if (*is_mine) return 0;
    *is_mine = 1; /* before: a handler may come in between */
    if (pthread_mutex_trylock(&lock->mutex) == 0 || lock_late(lock)) return 1;
    return *is_mine = 0;
}

static inline void lock_give(Lock *lock, uint8_t *is_mine) {
    pthread_mutex_unlock(&lock->mutex);
    *is_mine = 0;
}

#endif
