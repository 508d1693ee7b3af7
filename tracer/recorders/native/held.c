#include "held.h"

#include <errno.h>
#include <time.h>

/* Not those that a fault of the thread itself raises: blocked, they end the process. */
void hold(Held *held) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    sigset_t others;
    held->error = errno;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_BLOCK, &others, &held->signals);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &held->cancels);
}

void release(const Held *held) {
    int cancels;
    pthread_setcancelstate(held->cancels, &cancels);
    pthread_sigmask(SIG_SETMASK, &held->signals, NULL);
    errno = held->error;
}

int lock_late(Lock *lock) {
    struct timespec until;
    if (atomic_load(&lock->is_lost)) return 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    if (pthread_mutex_timedlock(&lock->mutex, &until) == 0) return 1;
    atomic_store(&lock->is_lost, 1);
    return 0;
}
