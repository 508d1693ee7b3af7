/* Draining: the opposite of a delay. The host waits until the stream is idle; what still arrives otherwise than it was
 * at the call was changed in stream order, by what came before the copy, and not by a host that was too early. */
#include "races.h"

enum { PAUSE_NS = 20000, MOST_IN_VAIN = 16 };

/* With no lock of a stream: what opens a gate of the program's may be another thread. Where a stream never becomes idle
 * after the copies of a site, a shorter wait shows that as well. */
enum Drained drain(StreamState *stream, Stream handle, const Row *row) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    REAL(cuStreamQuery, (Stream));
    int64_t begun = now_ns();
    int is_hopeless = row && atomic_load(&row->given_up) >= MOST_IN_VAIN;
    if (!settings.drain_ms || !real || !stream) return NOT_DRAINED;
    log_count(LOGGED_drains, 1);
    for (;;) {
        int is_gated = stream->is_gated;
        Result result = real(handle);
        if (result == SUCCESS) break;
        int64_t most = (int64_t)(is_gated || is_hopeless ? settings.gated_ms : settings.drain_ms) * 1000000;
        if (result != ERROR_NOT_READY || now_ns() - begun > most) {
            log_count(LOGGED_drains_given_up, 1);
            return is_gated ? GAVE_UP_GATED : GAVE_UP;
        }
        nanosleep(&pause, NULL);
    }
    atomic_store(&stream->is_gated, 0);
    streams_hold_again();
    return DRAINED;
}
