/* The program's own ranges and marks. NVTX passes them to the library named by NVTX_INJECTION64_PATH, initialised once
 * for each module of the program that uses NVTX; without such a library NVTX costs nothing.
 *
 * They are records like calls: `object` is the offset of the text, `result` its length, `number` identifies a range
 * that another thread may end, `bytes` and `copy_kind` are the payload and its type, `context` the domain, `stream` the
 * colour, whether there is one, and the category, `graph` the turn of recording, the same at both ends of a range.
 * Source: NVTX 3, nvToolsExt.h and nvtxDetail/nvtxTypes.h.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "held.h"
#include "interpose.h"

enum { CALLBACKS = 1, CORE = 1, CORE2 = 5, DOMAINS = 64, DOMAIN_NAME = 64, MOST_TEXT = 1023, NOT_TRACKED = -2 };
enum { ASCII = 1, UNICODE = 2, REGISTERED = 3 };

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
} Attributes;

typedef struct {
    size_t size;
    int (*table)(int module, void ***entries, unsigned *count);
} Callbacks;

/* The part of the ring's file for texts: a page with their end and the names of the domains, then the texts. */
typedef struct {
    _Atomic uint64_t end; /* of everything ever written; the last of them are stored */
    char domains[DOMAINS][DOMAIN_NAME];
} TextHead;
_Static_assert(sizeof(TextHead) <= TEXTS_AT, "the domains' names fit their place");

static _Atomic(TextHead *) head;
static int is_tried;
static char domains[DOMAINS][DOMAIN_NAME]; /* 0 is the default; the last stands for all beyond the limit */
static unsigned domain_count = 1;
static _Atomic uint32_t ranges_given;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void nvtx_fork(void) {
    const pthread_mutex_t open = PTHREAD_MUTEX_INITIALIZER;
    lock = open;
    is_tried = 0;
    atomic_store(&head, NULL);
}

/* The texts; they exist after the first CUDA call, because a process without one has no ring. */
static TextHead *texts(void) {
    TextHead *part = atomic_load_explicit(&head, memory_order_acquire);
    Held held;
    if (!ring.header) return NULL; /* as in a child, which has none yet; `head` is still its parent's */
    if (part) return part;
    hold(&held);
    pthread_mutex_lock(&lock);
    if (!is_tried && (part = ring_take_texts())) memcpy(part->domains, domains, sizeof domains);
    if (!is_tried) atomic_store_explicit(&head, part, memory_order_release);
    is_tried = 1;
    pthread_mutex_unlock(&lock);
    release(&held);
    return atomic_load(&head);
}

static void write_text(TextHead *all, Record *record, const char *text) {
    char *places = (char *)all + TEXTS_AT;
    uint64_t bytes = atomic_load_explicit(&ring.header->text_bytes, memory_order_relaxed);
    size_t length = text ? strnlen(text, MOST_TEXT) : 0;
    uint64_t at = atomic_fetch_add_explicit(&all->end, length, memory_order_relaxed);
    size_t first = at % bytes, until_end = bytes - first < length ? bytes - first : length;
    if (length) memcpy(places + first, text, until_end), memcpy(places, text + until_end, length - until_end);
    record->object = at;
    record->result = (uint16_t)length;
}

/* A wide text as UTF-8; the caller frees it. */
static char *narrow(const wchar_t *wide) {
    size_t length = wide ? wcslen(wide) : 0;
    char *text = malloc(4 * length + 1), *to = text;
    for (size_t i = 0; text && i < length; i++) {
        uint32_t c = (uint32_t)wide[i];
        if (c < 0x80) *to++ = (char)c;
        else if (c < 0x800) *to++ = (char)(0xc0 | c >> 6), *to++ = (char)(0x80 | (c & 0x3f));
        else if (c < 0x10000)
            *to++ = (char)(0xe0 | c >> 12), *to++ = (char)(0x80 | (c >> 6 & 0x3f)), *to++ = (char)(0x80 | (c & 0x3f));
        else
            *to++ = (char)(0xf0 | c >> 18), *to++ = (char)(0x80 | (c >> 12 & 0x3f)),
            *to++ = (char)(0x80 | (c >> 6 & 0x3f)), *to++ = (char)(0x80 | (c & 0x3f));
    }
    if (text) *to = 0;
    return text;
}

static void note(enum RangeCall call, void *domain, const Attributes *what, uint32_t number) {
    TextHead *all = texts();
    if (!all || ring_turn() & 1) return;
    Record record = {.begin = ring_now(), .call = (uint16_t)(CALL_COUNT + call), .number = number,
                     .context = (uint8_t)(uintptr_t)domain, .graph = (uint16_t)ring_turn()};
    if (what) {
        char *made = what->message_type == UNICODE ? narrow(what->message) : NULL;
        int is_narrow = what->message_type == ASCII || what->message_type == REGISTERED;
        write_text(all, &record, is_narrow ? what->message : made);
        free(made);
        record.stream = what->color | (uint64_t)(what->color_type != 0) << 32 | (uint64_t)what->category << 33;
        record.bytes = what->payload;
        record.copy_kind = (uint8_t)what->payload_type;
    }
    record.end = record.begin;
    ring_write(&record);
}

/* The interface of NVTX, without domains (as in its first version) and with domains. */
static uint32_t next_range(void) { return atomic_fetch_add(&ranges_given, 1u) + 1; }
static Attributes ascii(const char *text) { return (Attributes){.message_type = ASCII, .message = text}; }
static Attributes unicode(const wchar_t *text) { return (Attributes){.message_type = UNICODE, .message = text}; }

static void domain_mark(void *domain, const Attributes *what) { note(NVTX_mark, domain, what, 0); }
static uint64_t domain_start(void *domain, const Attributes *what) {
    uint32_t number = next_range();
    return note(NVTX_start, domain, what, number), number;
}
static void domain_end(void *domain, uint64_t number) { note(NVTX_end, domain, NULL, (uint32_t)number); }
static int domain_push(void *domain, const Attributes *what) { return note(NVTX_push, domain, what, 0), NOT_TRACKED; }
static int domain_pop(void *domain) { return note(NVTX_pop, domain, NULL, 0), NOT_TRACKED; }

static void mark(const Attributes *what) { domain_mark(NULL, what); }
static void mark_a(const char *text) { Attributes a = ascii(text); mark(&a); }
static void mark_w(const wchar_t *text) { Attributes a = unicode(text); mark(&a); }
static uint64_t start(const Attributes *what) { return domain_start(NULL, what); }
static uint64_t start_a(const char *text) { Attributes a = ascii(text); return start(&a); }
static uint64_t start_w(const wchar_t *text) { Attributes a = unicode(text); return start(&a); }
static void end(uint64_t number) { domain_end(NULL, number); }
static int push(const Attributes *what) { return domain_push(NULL, what); }
static int push_a(const char *text) { Attributes a = ascii(text); return push(&a); }
static int push_w(const wchar_t *text) { Attributes a = unicode(text); return push(&a); }
static int pop(void) { return domain_pop(NULL); }

static void *register_a(void *domain, const char *text) { return (void)domain, text ? strdup(text) : NULL; }
static void *register_w(void *domain, const wchar_t *text) { return (void)domain, narrow(text); }

static void *create_a(const char *name) {
    Held held;
    hold(&held);
    pthread_mutex_lock(&lock);
    unsigned at = 1;
    TextHead *all = atomic_load(&head);
    while (at < domain_count && strncmp(domains[at], name ? name : "", DOMAIN_NAME - 1)) at++;
    if (at == domain_count && domain_count < DOMAINS - 1) {
        strncpy(domains[domain_count++], name ? name : "", DOMAIN_NAME - 1);
        if (all) memcpy(all->domains[at], domains[at], DOMAIN_NAME);
    }
    pthread_mutex_unlock(&lock);
    release(&held);
    return (void *)(uintptr_t)at;
}
static void *create_w(const wchar_t *name) {
    char *made = narrow(name);
    void *domain = create_a(made);
    return free(made), domain;
}

static const struct {
    int module;
    unsigned at;
    void *function;
} functions[] = {
    {CORE, 1, (void *)mark}, {CORE, 2, (void *)mark_a}, {CORE, 3, (void *)mark_w}, {CORE, 4, (void *)start},
    {CORE, 5, (void *)start_a}, {CORE, 6, (void *)start_w}, {CORE, 7, (void *)end}, {CORE, 8, (void *)push},
    {CORE, 9, (void *)push_a}, {CORE, 10, (void *)push_w}, {CORE, 11, (void *)pop},
    {CORE2, 1, (void *)domain_mark}, {CORE2, 2, (void *)domain_start}, {CORE2, 3, (void *)domain_end},
    {CORE2, 4, (void *)domain_push}, {CORE2, 5, (void *)domain_pop}, {CORE2, 10, (void *)register_a},
    {CORE2, 11, (void *)register_w}, {CORE2, 12, (void *)create_a}, {CORE2, 13, (void *)create_w},
};

EXPORT int InitializeInjectionNvtx2(const void *(*tables)(uint32_t));

int InitializeInjectionNvtx2(const void *(*tables)(uint32_t)) {
    const Callbacks *callbacks = tables ? tables(CALLBACKS) : NULL;
    if (!callbacks || callbacks->size < sizeof *callbacks || !interpose_wanted()) return 0;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void **table = NULL;
        unsigned count = 0;
        if (!callbacks->table(functions[i].module, &table, &count) || !table || functions[i].at >= count) continue;
        if (table[functions[i].at]) *(void **)table[functions[i].at] = functions[i].function;
    }
    return 1;
}
