/* What the program fetches from the device: a digest of each result, taken when the program has waited for it. */
#include <pthread.h>
#include <string.h>

#include "races.h"

enum { PENDING = 1 << 12 };

typedef struct {
    StreamState *stream;
    uint64_t number;
    Fetched what;
    Row *row;
} Pending;

/* In the order in which they were enqueued. */
static Pending pending[PENDING];
static unsigned pending_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void digest_fork(void) {
    pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    lock = open;
    pending_count = 0;
}

static uint64_t mixed(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ sum >> 29;
}

static uint64_t digest_of(const Fetched *what) {
    uint64_t sum = UINT64_C(0xcbf29ce484222325), word;
    for (size_t row = 0; row < what->rows; row++) {
        const unsigned char *at = (const unsigned char *)what->to + row * what->pitch;
        size_t i = 0;
        for (; i + 8 <= what->width; i += 8) memcpy(&word, at + i, 8), sum = mixed(sum, word);
        for (word = 0; i < what->width; i++) word = word << 8 | at[i];
        sum = mixed(sum, word);
    }
    return mixed(sum, what->width * what->rows);
}

static size_t span(const Fetched *what) { return (what->rows - 1) * what->pitch + what->width; }

static int overlaps(const Fetched *what, const void *from, size_t bytes) {
    const char *to = what->to, *other = from;
    return to < other + bytes && other < to + span(what);
}

/* A copy to pageable memory is over when its call returns, and that memory may be gone at the next wait. */
void fetch(StreamState *stream, uint64_t number, const Fetched *what, Row *row) {
    if (!settings.digests || !stream || !what->width || !what->rows) return;
    if (memory_of(what->to, NULL, NULL) != PINNED) return fetched_now(what, row);
    pthread_mutex_lock(&lock);
    log_count(LOGGED_fetches, 1);
    if (row) row_count(&row->fetched);
    unsigned kept = 0;
    for (unsigned i = 0; i < pending_count; i++) { /* a result that is overwritten was not waited for */
        int is_same = pending[i].what.to == what->to && span(&pending[i].what) <= span(what);
        if (is_same && pending[i].row) row_count(&pending[i].row->unwaited);
        if (!is_same) pending[kept++] = pending[i];
    }
    pending_count = kept;
    if (pending_count < PENDING) pending[pending_count++] = (Pending){stream, number, *what, row};
    else log_count(LOGGED_fetches_lost, 1);
    pthread_mutex_unlock(&lock);
}

static void take(const Fetched *what, Row *row) {
    log_digest(digest_of(what), row);
    if (row) row_count(&row->waited);
}

void fetched_now(const Fetched *what, Row *row) {
    if (!settings.digests || !what->width || !what->rows) return;
    pthread_mutex_lock(&lock);
    log_count(LOGGED_fetches, 1);
    if (row) row_count(&row->fetched);
    take(what, row);
    pthread_mutex_unlock(&lock);
}

void fetch_forget(const void *from, size_t bytes) {
    unsigned kept = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < pending_count; i++) {
        int is_gone = !from || overlaps(&pending[i].what, from, bytes);
        if (is_gone && pending[i].row) row_count(&pending[i].row->unwaited);
        if (!is_gone) pending[kept++] = pending[i];
    }
    pending_count = kept;
    pthread_mutex_unlock(&lock);
}

int fetch_pending(const void *from, size_t bytes) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < pending_count && !found; i++) found = overlaps(&pending[i].what, from, bytes);
    pthread_mutex_unlock(&lock);
    return found;
}

void digest_waited(const Covered *covered) {
    unsigned kept = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < pending_count; i++) {
        int is_complete = 0;
        for (unsigned j = 0; j < covered->count && !is_complete; j++)
            is_complete = covered->of[j].stream == pending[i].stream && covered->of[j].number >= pending[i].number;
        if (is_complete) take(&pending[i].what, pending[i].row);
        else pending[kept++] = pending[i];
    }
    pending_count = kept;
    pthread_mutex_unlock(&lock);
}
