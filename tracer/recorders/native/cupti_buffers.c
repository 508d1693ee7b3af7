/* Buffers, from CUPTI to the file and back, and the names to which their records point. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cupti.h"
#include "files.h"
#include "ring.h"

#define SUFFIX ".cupti"
enum { BUFFER_BYTES = 1 << 18, PREPARED = 16, MOST_TEXT = 1 << 16, TEXTS = 1 << 16, CALLS = 4096 };

/* Of the records with names (CUpti_ActivityKind): CUpti_ActivityAPI.cbid, CUpti_ActivityKernel*.name and
 * CUpti_ActivityDevice*.name are at these offsets in every version. */
enum { DRIVER = 4, RUNTIME = 5, DEVICE = 8, KERNEL = 10 };
enum { CALL_AT = 4, DEVICE_NAME_AT = 136, KERNEL_NAME_AT = 104 };

typedef struct Buffer {
    struct Buffer *next;
    CuptiHead head; /* written to the file together with the records */
    uint8_t records[BUFFER_BYTES] __attribute__((aligned(8)));
} Buffer;
_Static_assert(offsetof(Buffer, records) == offsetof(Buffer, head) + sizeof(CuptiHead), "a block is in one piece");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows: the program's threads ask for buffers */
static Buffer *unused;
static uint64_t given; /* buffers that CUPTI has */

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER; /* of the file, and of what follows */
static uint64_t texts[TEXTS];                               /* addresses that were written, hashed */
static unsigned text_count;
static uint8_t calls[CUPTI_RUNTIME_CALLS + 1][CALLS]; /* whether a call's name was written */

void cupti_buffers_start(void) {
    for (int i = 0; i < PREPARED; i++) {
        Buffer *new = malloc(sizeof *new);
        if (!new) return;
        memset(new, 0, sizeof *new); /* touch the pages now */
        new->next = unused;
        unused = new;
    }
}

void cupti_buffers_fork(void) {
    const pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    lock = writing = open;
    given = text_count = 0;
    memset(texts, 0, sizeof texts);
    memset(calls, 0, sizeof calls);
}

void cupti_write(enum CuptiBlock kind, uint64_t about, const char *text) {
    size_t length = strnlen(text, MOST_TEXT);
    char *block = malloc(sizeof(CuptiHead) + length);
    if (!block) return;
    CuptiHead head = {kind, (uint32_t)length, about};
    memcpy(block, &head, sizeof head);
    memcpy(block + sizeof head, text, length);
    files_add(SUFFIX, block, sizeof head + length);
    free(block);
}

/* CUPTI keeps the text of a name while the process runs, and one address for one name. */
static void write_text(const uint8_t *at) {
    uint64_t address;
    memcpy(&address, at, sizeof address);
    if (!address || text_count > TEXTS / 4 * 3) return;
    size_t place = address * UINT64_C(0x9e3779b97f4a7c15) >> 48;
    while (texts[place] && texts[place] != address) place = (place + 1) % TEXTS;
    if (texts[place]) return;
    texts[place] = address;
    text_count++;
    cupti_write(CUPTI_TEXT, address, (const char *)(uintptr_t)address);
}

static void write_call(uint64_t domain, const uint8_t *at) {
    const char *name = NULL;
    uint32_t id;
    memcpy(&id, at, sizeof id);
    if (id >= CALLS || calls[domain][id]) return;
    calls[domain][id] = 1;
    if (!cupti.GetCallbackName((int)domain, id, &name) && name) cupti_write(CUPTI_CALL, domain << 32 | id, name);
}

/* Write the names to which records point; returns the number of records. */
static uint64_t write_names(uint8_t *buffer, size_t valid) {
    void *record = NULL;
    uint64_t count = 0;
    for (; !cupti.ActivityGetNextRecord(buffer, valid, &record); count++) {
        const uint8_t *at = record;
        uint32_t kind;
        memcpy(&kind, at, sizeof kind);
        if (kind == KERNEL) write_text(at + KERNEL_NAME_AT);
        if (kind == DEVICE) write_text(at + DEVICE_NAME_AT);
        if (kind == DRIVER) write_call(CUPTI_DRIVER_CALLS, at + CALL_AT);
        if (kind == RUNTIME) write_call(CUPTI_RUNTIME_CALLS, at + CALL_AT);
    }
    return count;
}

void cupti_request(uint8_t **buffer, size_t *size, size_t *most_records) {
    pthread_mutex_lock(&lock);
    Buffer *taken = unused;
    if (taken) unused = taken->next;
    else taken = calloc(1, sizeof *taken);
    given += taken != NULL;
    pthread_mutex_unlock(&lock);
    if (taken) taken->head.about = ring_turn();
    *buffer = taken ? taken->records : NULL;
    *size = taken ? BUFFER_BYTES : 0;
    *most_records = 0; /* as many as fit */
}

void cupti_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    if (!buffer) return;
    Buffer *filled = (Buffer *)(buffer - offsetof(Buffer, records));
    uint32_t turn = ring_turn();
    int was_paused = turn & 1 && filled->head.about == turn;
    if (valid && !was_paused) {
        pthread_mutex_lock(&writing);
        uint64_t records = write_names(buffer, valid);
        filled->head.kind = CUPTI_RECORDS;
        filled->head.bytes = (uint32_t)valid;
        if (!files_add(SUFFIX, (const char *)&filled->head, sizeof filled->head + valid))
            ring_count(COUNT_cupti_dropped, records);
        pthread_mutex_unlock(&writing);
    }
    memset(buffer, 0, valid); /* as CLEARED_BUFFERS promises */
    pthread_mutex_lock(&lock);
    filled->next = unused;
    unused = filled;
    given--;
    pthread_mutex_unlock(&lock);
}

uint64_t cupti_buffers_given(void) {
    pthread_mutex_lock(&lock);
    uint64_t count = given;
    pthread_mutex_unlock(&lock);
    return count;
}
