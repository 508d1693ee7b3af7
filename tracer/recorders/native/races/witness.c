/* The witness: what an asynchronous copy should have brought, and what it brought.
 *
 * At the call the source is kept in pinned memory of ours; right behind the copy, on its stream, the destination is
 * copied back there, and a word says when that is done. A thread of ours compares. No kernel runs for it.
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "../held.h"
#include "races.h"

enum {
    SMALL_BYTES = 1 << 12, LARGE_BYTES = 1 << 16,
    SMALL = 2048, LARGE = 256, SLOTS = SMALL + LARGE,
    PIECE = 2048, /* of a copy of which only samples are compared */
    MOST_ROWS = 32,
    GATES_BYTES = 1 << 14,
    MARKS_AT = GATES_BYTES, SMALL_AT = 1 << 16,
    LARGE_AT = SMALL_AT + SMALL * 2 * SMALL_BYTES, PINNED_BYTES = LARGE_AT + LARGE * 2 * LARGE_BYTES,
    PAUSE_NS = 500000, EVENT_UNTIMED = 2, ALREADY_REGISTERED = 712,
};
_Static_assert(MARKS_AT + SLOTS * 8 <= SMALL_AT, "marks fit");

enum Phase { FREE, TAKEN, PENDING };
struct Slot {
    uint64_t mark;
    unsigned char *was, *came;
    Event event; /* where no word can be written */
    Row *row;
    Shape shape;         /* of the copy */
    size_t piece, count; /* what is compared: pieces, */
    size_t apart;        /* so many bytes apart in the source */
    size_t to_apart;     /* and in the destination */
    size_t tail;         /* and the last bytes of a plain copy */
    uint64_t number, step;
    _Bool is_excused, by_event;
    _Atomic int drained;
};

static Slot slots[SLOTS];
static _Atomic unsigned char phases[SLOTS]; /* of each, beside each other: they are looked through often */
static unsigned small_free[SMALL], large_free[LARGE], small_count, large_count;
static _Atomic unsigned pending_count;
static unsigned char *pinned;
static DevicePointer pinned_seen;
static Context registered_in;
static _Bool is_refused, has_thread;
static uint64_t last_mark;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of slots and memory */
static pthread_mutex_t comparing = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t some = PTHREAD_COND_INITIALIZER;

void witness_fork(void) {
    pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t none = PTHREAD_COND_INITIALIZER;
    lock = open, comparing = open, some = none;
    memset(slots, 0, sizeof slots), memset((void *)phases, 0, sizeof phases);
    pinned = NULL; /* the parent's, which is not pinned here */
    pinned_seen = 0, registered_in = NULL, is_refused = has_thread = 0;
    small_count = large_count = pending_count = 0;
}

/* Memory that the device reads and writes, registered once for all contexts, with the lock. */
static int have_memory(void) {
    Context current = NULL;
    if (is_refused) return 0;
    if (pinned && registered_in) return 1;
    if (!ours.cuMemHostRegister_v2 || !ours.cuMemHostGetDevicePointer_v2) is_refused = 1;
    if (!pinned && !is_refused) {
        void *map = mmap(NULL, PINNED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED) is_refused = 1;
        else pinned = map;
        for (unsigned i = 0; i < SLOTS; i++) {
            size_t bytes = i < SMALL ? SMALL_BYTES : LARGE_BYTES;
            size_t at = i < SMALL ? SMALL_AT + i * 2 * bytes : LARGE_AT + (i - SMALL) * 2 * bytes;
            slots[i].was = pinned + at, slots[i].came = slots[i].was + bytes;
        }
        for (; small_count < SMALL && small_count < settings.slots; small_count++) small_free[small_count] = small_count;
        for (; large_count < LARGE && large_count < settings.slots; large_count++)
            large_free[large_count] = SMALL + large_count;
    }
    if (!is_refused && (!ours.cuCtxGetCurrent || ours.cuCtxGetCurrent(&current) || !current)) return 0;
    if (!is_refused) {
        const unsigned how = HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP;
        Result result = ours.cuMemHostRegister_v2(pinned, PINNED_BYTES, how);
        is_refused = (result != SUCCESS && result != ALREADY_REGISTERED) ||
                     ours.cuMemHostGetDevicePointer_v2(&pinned_seen, pinned, 0) != SUCCESS;
        registered_in = is_refused ? NULL : current;
    }
    if (is_refused) log_count(LOGGED_no_memory, 1);
    return !is_refused;
}

int witness_has_memory(void) {
    pthread_mutex_lock(&lock);
    int is_over = have_memory() || is_refused;
    pthread_mutex_unlock(&lock);
    return is_over;
}

void *pinned_gates(DevicePointer *device) {
    pthread_mutex_lock(&lock);
    int is_there = have_memory();
    pthread_mutex_unlock(&lock);
    *device = pinned_seen;
    return is_there ? pinned : NULL;
}

/* A context is about to be destroyed, and with it what is registered in it: begin again in the next. */
void witness_forget_context(void) {
    witness_settle(INT64_C(100000000));
    pthread_mutex_lock(&lock);
    registered_in = NULL;
    pthread_mutex_unlock(&lock);
}

static _Atomic uint64_t *mark_of(const Slot *slot) {
    return (_Atomic uint64_t *)(void *)(pinned + MARKS_AT) + (slot - slots);
}

static void give(Slot *slot) {
    unsigned at = (unsigned)(slot - slots);
    pthread_mutex_lock(&lock);
    if (atomic_exchange(&phases[at], FREE) == PENDING) pending_count--;
    if (at < SMALL) small_free[small_count++] = at;
    else large_free[large_count++] = at;
    pthread_mutex_unlock(&lock);
}

static int has_arrived(Slot *slot) {
    if (!slot->by_event) return atomic_load_explicit(mark_of(slot), memory_order_acquire) == slot->mark;
    REAL(cuEventQuery, (Event));
    Inside before = inside();
    Result result = real ? real(slot->event) : ERROR_NOT_READY;
    outside(before);
    return result == SUCCESS;
}

/* Where a byte of what is compared lies in the source. */
static size_t offset_of(const Slot *slot, size_t at) {
    if (at < slot->piece * slot->count) return at / slot->piece * slot->apart + at % slot->piece;
    return slot->shape.width - slot->tail + (at - slot->piece * slot->count);
}

/* With the lock `comparing`. */
static void compare(Slot *slot) {
    size_t bytes = slot->piece * slot->count + slot->tail, at = 0;
    Row *row = slot->row;
    int how = atomic_load(&slot->drained), is_bad = memcmp(slot->was, slot->came, bytes) != 0;
    if (is_bad) {
        uint64_t first = atomic_load(&row->first_bad);
        while (slot->was[at] == slot->came[at]) at++;
        if (!first || slot->number < first) {
            atomic_store(&row->first_bad, slot->number);
            row->bad_offset = offset_of(slot, at), row->bad_step = slot->step;
            row->bad_was = slot->was[at], row->bad_came = slot->came[at];
        }
        row_count(slot->is_excused ? &row->bad_excused : &row->bad);
    }
    if (how == DRAINED) row_count(&row->drained);
    if (how == GAVE_UP) row_count(&row->given_up);
    if (how == GAVE_UP_GATED) row_count(&row->gated);
    if (is_bad && how == DRAINED) row_count(&row->bad_drained);
    if (is_bad && how == GAVE_UP) row_count(&row->bad_given_up);
    if (is_bad && how == GAVE_UP_GATED) row_count(&row->bad_gated);
    row_count(&row->checked);
}

void witness_check(void) {
    if (!atomic_load(&pending_count) || pthread_mutex_trylock(&comparing)) return;
    for (unsigned i = 0; i < SLOTS; i++) {
        Slot *slot = &slots[i];
        if (atomic_load_explicit(&phases[i], memory_order_acquire) != PENDING || slot->drained < 0) continue;
        if (has_arrived(slot)) compare(slot), give(slot);
    }
    pthread_mutex_unlock(&comparing);
}

static void *watch(void *nothing) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!pending_count) pthread_cond_wait(&some, &lock);
        pthread_mutex_unlock(&lock);
        witness_check();
        nanosleep(&pause, NULL);
    }
    return nothing;
}

void witness_settle(int64_t most_ns) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (int64_t until = now_ns() + most_ns; atomic_load(&pending_count) && now_ns() < until;) {
        witness_check();
        nanosleep(&pause, NULL);
    }
}

static void start_thread(void) {
    pthread_t thread;
    Held held;
    hold(&held); /* the thread takes no signals of the program's */
    has_thread = pthread_create(&thread, NULL, watch, NULL) == 0;
    if (has_thread) pthread_detach(thread);
    release(&held);
}

/* Which parts of a copy are compared: all of it, or samples of at most so many bytes. */
static void choose(Slot *slot) {
    const Shape *shape = &slot->shape;
    size_t most = settings.sample, rows = shape->rows;
    slot->piece = shape->width, slot->count = rows, slot->apart = shape->from_pitch, slot->to_apart = shape->to_pitch;
    slot->tail = 0;
    if (shape->width * rows <= most) return;
    if (rows == 1) {
        size_t pieces = most / PIECE;
        slot->piece = slot->tail = PIECE, slot->count = pieces - 1;
        slot->apart = slot->to_apart = (shape->width - PIECE) / (pieces - 1);
        return;
    }
    if (slot->piece > most / MOST_ROWS) slot->piece = most / MOST_ROWS;
    slot->count = most / slot->piece < rows ? most / slot->piece : rows;
    size_t step = rows / slot->count;
    slot->apart *= step, slot->to_apart *= step;
}

static Slot *take(size_t bytes) {
    Slot *slot = NULL;
    pthread_mutex_lock(&lock);
    if (have_memory()) {
        if (bytes <= SMALL_BYTES && small_count) slot = &slots[small_free[--small_count]];
        else if (large_count) slot = &slots[large_free[--large_count]];
        if (slot) atomic_store(&phases[slot - slots], TAKEN), slot->mark = ++last_mark;
        else log_count(LOGGED_slots_full, 1);
        if (!has_thread) start_thread();
    }
    pthread_mutex_unlock(&lock);
    return slot;
}

Slot *witness_before(const Shape *shape, StreamState *stream, Row *row, int is_excused) {
    if (!settings.witness || !stream || !row || !shape->width || !shape->rows) return NULL;
    size_t bytes = shape->width * shape->rows;
    Slot *slot = take(bytes < settings.sample ? bytes : settings.sample);
    if (!slot) return row_count(&row->unchecked), NULL;
    slot->shape = *shape, slot->row = row, slot->is_excused = is_excused != 0, slot->by_event = 0;
    slot->drained = settings.drain_ms ? -1 : NOT_DRAINED; /* not to be compared before it is known */
    slot->number = atomic_load(&row->calls), slot->step = log_step();
    choose(slot);
    const unsigned char *from = shape->from;
    for (size_t i = 0; i < slot->count; i++) memcpy(slot->was + i * slot->piece, from + i * slot->apart, slot->piece);
    memcpy(slot->was + slot->count * slot->piece, from + shape->width - slot->tail, slot->tail);
    if (shape->is_part || slot->piece * slot->count + slot->tail < bytes) row_count(&row->sampled);
    return slot;
}

/* Copy back what has arrived. */
static int copy_back(Slot *slot, Stream stream) {
    REAL(cuMemcpyDtoHAsync_v2, (void *, DevicePointer, size_t, Stream));
    Result (*rows)(const Copy2D *, Stream) =
        (Result(*)(const Copy2D *, Stream))real_call(CALL_cuMemcpy2DAsync_v2);
    size_t whole = slot->piece * slot->count;
    if (!real) return 0;
    if (slot->count == 1) {
        if (real(slot->came, slot->shape.to, whole, stream)) return 0;
    } else {
        Copy2D all = {.src = {.type = MEMORY_DEVICE, .device = slot->shape.to, .pitch = slot->to_apart},
                      .dst = {.type = MEMORY_HOST, .host = slot->came, .pitch = slot->piece},
                      .width = slot->piece, .height = slot->count};
        if (!rows || rows(&all, stream)) return 0;
    }
    return !slot->tail ||
           !real(slot->came + whole, slot->shape.to + slot->shape.width - slot->tail, slot->tail, stream);
}

/* A word, or else an event, that says when the bytes are there. */
static int mark(Slot *slot, Stream stream) {
    REAL(cuStreamWriteValue64_v2, (Stream, DevicePointer, uint64_t, unsigned));
    Result (*record)(Event, Stream) = (Result(*)(Event, Stream))real_call(CALL_cuEventRecord);
    DevicePointer at = pinned_seen + MARKS_AT + (unsigned)(slot - slots) * sizeof(uint64_t);
    if (real && real(stream, at, slot->mark, 0) == SUCCESS) return 1;
    slot->by_event = 1;
    if (!slot->event && (!ours.cuEventCreate || ours.cuEventCreate(&slot->event, EVENT_UNTIMED))) return 0;
    return record && record(slot->event, stream) == SUCCESS;
}

void witness_behind(Slot *slot, Stream stream, Result result) {
    if (!slot) return;
    Row *row = slot->row;
    if (result != SUCCESS) return give(slot);
    row_count(&row->witnessed);
    if (copy_back(slot, stream) && mark(slot, stream)) {
        pthread_mutex_lock(&lock);
        pending_count++;
        atomic_store_explicit(&phases[slot - slots], PENDING, memory_order_release);
        pthread_cond_signal(&some);
        pthread_mutex_unlock(&lock);
        return;
    }
    row_count(&row->refused); /* its memory may still be written: it stays taken */
    log_count(LOGGED_witness_refused, 1);
}

Row *witness_row(const Slot *slot) { return slot->row; }

void witness_drained(Slot *slot, enum Drained how) {
    if (slot) atomic_store(&slot->drained, how);
}

unsigned witness_in_flight(uint64_t from, uint64_t bytes, Row **rows, unsigned most) {
    unsigned count = 0;
    for (unsigned i = 0; i < SLOTS && count < most; i++) {
        Slot *slot = &slots[i];
        if (atomic_load(&phases[i]) != PENDING || has_arrived(slot)) continue;
        uint64_t source = (uintptr_t)slot->shape.from, to = slot->shape.to, last = slot->shape.rows - 1;
        uint64_t in_source = last * slot->shape.from_pitch + slot->shape.width;
        uint64_t in_destination = last * slot->shape.to_pitch + slot->shape.width;
        if ((source < from + bytes && from < source + in_source) || (to < from + bytes && from < to + in_destination))
            rows[count++] = slot->row;
    }
    return count;
}
