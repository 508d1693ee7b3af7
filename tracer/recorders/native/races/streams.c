/* Streams: their locks, and what the host has waited for, through streams and events. */
#include <pthread.h>
#include <string.h>

#include "races.h"

#define LEGACY ((Stream)1)
#define OF_THREAD ((Stream)2)
enum { EVENTS = 1 << 12 };

static StreamState streams[STREAMS];
static unsigned stream_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both tables, and of `behind` */

/* What comes before an event; one that is recorded again replaces it. */
static struct {
    Event event;
    Cover covers[COVERS + 1];
    unsigned count;
} events[EVENTS];

void streams_fork(void) {
    pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    lock = open;
    memset(streams, 0, sizeof streams), memset(events, 0, sizeof events);
    stream_count = 0;
}

Stream stream_given(Stream stream, int own) { return stream ? stream : own ? OF_THREAD : LEGACY; }

StreamState *stream_of(Stream given) {
    uint64_t thread = given == OF_THREAD ? (uint64_t)(uintptr_t)pthread_self() : 0;
    StreamState *found = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < stream_count && !found; i++)
        if (streams[i].handle == (uintptr_t)given && streams[i].thread == thread) found = &streams[i];
    if (!found && stream_count < STREAMS) {
        unsigned flags = 1;
        found = &streams[stream_count];
        if (given == LEGACY || given == OF_THREAD) flags = 0;
        else if (!ours.cuStreamGetFlags || ours.cuStreamGetFlags(given, &flags)) flags = 1;
        *found = (StreamState){.handle = (uintptr_t)given, .thread = thread, .is_blocking = !(flags & 1)};
        const pthread_mutex_t open = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* a profiler may call within a call */
        found->lock = open;
        stream_count++;
    }
    pthread_mutex_unlock(&lock);
    if (!found) log_count(LOGGED_streams_lost, 1);
    return found;
}

/* Also where the driver does not say: a legacy stream beside a capture. */
int stream_is_capturing(Stream stream) {
    int status = CAPTURE_NONE;
    if (!ours.cuStreamIsCapturing) return 0;
    return ours.cuStreamIsCapturing(stream, &status) != SUCCESS || status != CAPTURE_NONE;
}

uint64_t stream_enter(StreamState *stream) {
    if (!stream) return 0;
    pthread_mutex_lock(&stream->lock);
    return ++stream->enqueued;
}

void stream_leave(StreamState *stream) {
    if (stream) pthread_mutex_unlock(&stream->lock);
}

/* Add to a list what a wait covers; of a stream only the largest number. A list that is full forgets the oldest. */
static void cover(Cover *covers, unsigned *count, unsigned most, Cover more) {
    for (unsigned i = 0; i < *count; i++)
        if (covers[i].stream == more.stream) {
            if (covers[i].number < more.number) covers[i].number = more.number;
            return;
        }
    if (*count == most) memmove(covers, covers + 1, (most - 1) * sizeof *covers), --*count;
    covers[(*count)++] = more;
}

static unsigned place_of(Event event) {
    return (unsigned)((uintptr_t)event * UINT64_C(0x9e3779b97f4a7c15) >> 52) % EVENTS;
}

/* All that comes before the next piece of work of a stream. */
static unsigned all_before(const StreamState *stream, Cover covers[COVERS + 1]) {
    memcpy(covers, stream->behind, stream->behind_count * sizeof *covers);
    covers[stream->behind_count] = (Cover){(StreamState *)stream, stream->enqueued};
    return stream->behind_count + 1;
}

void streams_record(StreamState *stream, Event event) {
    if (!stream) return;
    pthread_mutex_lock(&lock);
    unsigned at = place_of(event);
    events[at].event = event;
    events[at].count = all_before(stream, events[at].covers);
    pthread_mutex_unlock(&lock);
}

void streams_wait(StreamState *stream, Event event) {
    if (!stream) return;
    pthread_mutex_lock(&lock);
    unsigned at = place_of(event);
    for (unsigned i = 0; events[at].event == event && i < events[at].count; i++) {
        if (events[at].covers[i].stream == stream) continue;
        cover(stream->behind, &stream->behind_count, COVERS, events[at].covers[i]);
        if (events[at].covers[i].stream->is_gated) stream->is_gated = 1;
    }
    pthread_mutex_unlock(&lock);
}

static void be_idle(StreamState *stream) {
    atomic_store(&stream->is_gated, 0);
    atomic_store(&stream->is_held, 0);
}

void streams_hold_again(void) {
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < stream_count; i++) atomic_store(&streams[i].is_held, 0);
    pthread_mutex_unlock(&lock);
}

void streams_forget(Stream given) {
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < stream_count; i++)
        if (streams[i].handle == (uintptr_t)given) /* the next stream with this handle counts on */
            streams[i].behind_count = 0, be_idle(&streams[i]);
    pthread_mutex_unlock(&lock);
}

void waited_for(const Covered *covered) {
    digest_waited(covered);
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < covered->count; i++) {
        StreamState *stream = covered->of[i].stream;
        if (stream->waited < covered->of[i].number) stream->waited = covered->of[i].number;
        if (stream->waited == stream->enqueued) be_idle(stream);
    }
    pthread_mutex_unlock(&lock);
    witness_check();
}

/* The legacy default stream waits for all streams that are not made non-blocking. */
void cover_stream(StreamState *stream, Covered *covered) {
    covered->count = 0;
    if (!stream) return;
    pthread_mutex_lock(&lock);
    covered->count = all_before(stream, covered->of);
    if (stream->handle == (uintptr_t)LEGACY)
        for (unsigned i = 0; i < stream_count; i++)
            if (streams[i].is_blocking)
                cover(covered->of, &covered->count, STREAMS + COVERS + 1, (Cover){&streams[i], streams[i].enqueued});
    pthread_mutex_unlock(&lock);
}

void cover_event(Event event, Covered *covered) {
    pthread_mutex_lock(&lock);
    unsigned at = place_of(event);
    covered->count = events[at].event == event ? events[at].count : 0;
    memcpy(covered->of, events[at].covers, covered->count * sizeof *covered->of);
    pthread_mutex_unlock(&lock);
}

void cover_all(Covered *covered) {
    pthread_mutex_lock(&lock);
    for (covered->count = 0; covered->count < stream_count; covered->count++)
        covered->of[covered->count] = (Cover){&streams[covered->count], streams[covered->count].enqueued};
    pthread_mutex_unlock(&lock);
}
