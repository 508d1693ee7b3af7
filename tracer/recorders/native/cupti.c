#include "cupti.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "interpose.h"

enum { SETTINGS_BYTES = 1 << 13, MOST_CALLS = 2000 };
enum { FLUSH_NS = 500000000, END_S = 5, FLUSH_COMPLETED = 0, FLUSH_ALL = 1 };
enum { SYSTEM_THREAD_IDS = 1, CLEARED_BUFFERS = 5, BUFFER_PER_THREAD = 9 /* CUpti_ActivityAttribute; since 12.3 */ };

Cupti cupti;
/* Lines: "library PATH", "known VERSION" (the last whose records have known sizes), "kind NUMBER" in order, "skip NAME",
 * and "wrap DRIVER" to record both ways. */
static char settings[SETTINGS_BYTES];
static _Atomic pid_t started_in;      /* 0: not started */
static sem_t ending;
static _Atomic int is_ending, has_ended;

void cupti_fork(void) {
    if (started_in) cupti_buffers_fork();
    started_in = 0;
}

/* Report a result other than success. */
static int failed(const char *function, long argument, int result) {
    const char *name = NULL;
    char text[160];
    if (!result) return 0;
    if (cupti.GetResultString(result, &name) || !name) name = "unknown error";
    if (argument < 0) snprintf(text, sizeof text, "%s failed with %s", function, name);
    else snprintf(text, sizeof text, "%s(%ld) failed with %s", function, argument, name);
    cupti_write(CUPTI_FAILED, (uint64_t)result, text);
    return 1;
}

/* A copy of libcupti that the program has loaded: two in one process do not work together. */
static int is_loaded(struct dl_phdr_info *library, size_t size, void *handle) {
    const char *name = strrchr(library->dlpi_name, '/');
    if (!name || strncmp(name, "/libcupti.so", strlen("/libcupti.so"))) return 0;
    return (void)size, *(void **)handle = dlopen(library->dlpi_name, RTLD_NOW | RTLD_NOLOAD), 1;
}

static int load(const char *path) {
    void *library = NULL;
    char text[160];
    dl_iterate_phdr(is_loaded, &library);
    if (!library && path) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return cupti_write(CUPTI_FAILED, 0, why ? why : "there is no libcupti"), 0;
    }
#define X(name, params) cupti.name = (int(*) params)dlsym(library, "cupti" #name);
    CUPTI_NEWER(X)
#undef X
#define X(name, params)                                                                                               \
    if (!(cupti.name = (int(*) params)dlsym(library, "cupti" #name))) {                                               \
        snprintf(text, sizeof text, "libcupti has no function cupti" #name);                                          \
        return cupti_write(CUPTI_FAILED, 0, text), 0;                                                                 \
    }
    CUPTI_FUNCTIONS(X)
#undef X
    return 1;
}

/* The next line of the settings that begins with a word, behind that word; NULL at the end. */
static const char *next(const char *at, const char *word) {
    size_t length = strlen(word);
    for (; at && *at; at = strchr(at, '\n'), at += at != NULL)
        if (strncmp(at, word, length) == 0 && at[length] == ' ') return at + length + 1;
    return NULL;
}

int cupti_alone(void) { return files_read("cupti", settings, sizeof settings) > 0 && !next(settings, "wrap"); }

/* Whether a call's name, without the suffixes for its version and streams, is to be skipped. */
static int is_skipped(const char *name) {
    for (const char *at = settings; (at = next(at, "skip"));) {
        size_t length = strcspn(at, "\n");
        const char *rest = name + length;
        if (strncmp(name, at, length) == 0 && (!*rest || !strncmp(rest, "_v", 2) || !strncmp(rest, "_pt", 3))) return 1;
    }
    return 0;
}

static void skip_calls(int domain, int (*enable)(uint32_t, uint8_t)) {
    const char *name;
    for (uint32_t id = 1; enable && id < MOST_CALLS; id++)
        if (!cupti.GetCallbackName(domain, id, &name) && name && is_skipped(name)) enable(id, 0);
}

/* Wait for a semaphore until a number of ns from now; returns whether it was posted. */
static int wait_for(sem_t *semaphore, int64_t ns) {
    struct timespec until;
    int result;
    clock_gettime(CLOCK_REALTIME, &until);
    ns += until.tv_nsec;
    until.tv_sec += ns / 1000000000, until.tv_nsec = ns % 1000000000;
    while ((result = sem_timedwait(semaphore, &until)) && errno == EINTR) continue;
    return result == 0;
}

/* Completed buffers are taken regularly, so that little is lost when the process is killed. */
static void *flush(void *nothing) {
    for (int is_over = 0; !is_over;) {
        is_over = wait_for(&ending, FLUSH_NS);
        size_t dropped = 0;
        cupti.ActivityFlushAll(is_over ? FLUSH_ALL : FLUSH_COMPLETED);
        if (!cupti.ActivityGetNumDroppedRecords(NULL, 0, &dropped)) ring_count(COUNT_cupti_dropped, dropped);
    }
    ring_count(COUNT_cupti_buffers_left, cupti_buffers_given());
    ring_count(COUNT_cupti_ended, 1);
    atomic_store(&has_ended, 1);
    syscall(SYS_futex, &has_ended, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return nothing;
}

/* Take what is left, before the process ends. The other thread does it: this one may be inside CUPTI, with a lock of
 * it, if a signal's handler ends the process. All that is called here may be called in such a handler. */
static void end(void) {
    if (!started_in || started_in != getpid() || atomic_exchange(&is_ending, 1)) return;
    sem_post(&ending);
    const struct timespec part = {.tv_nsec = 100000000};
    const int64_t until = ring_monotonic() + END_S * INT64_C(1000000000);
    while (!atomic_load(&has_ended) && ring_monotonic() < until)
        syscall(SYS_futex, &has_ended, FUTEX_WAIT_PRIVATE, 0, &part, NULL, 0);
}

static int start_flushing(void) {
    sigset_t all, before;
    pthread_t thread;
    sem_init(&ending, 0, 0);
    is_ending = has_ended = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are for its own threads */
    int result = pthread_create(&thread, NULL, flush, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result == 0 && pthread_detach(thread) == 0;
}

static void start(void) {
    char path[4096] = "";
    uint32_t version = 0;
    const char *at = next(settings, "library");
    if (at) snprintf(path, sizeof path, "%.*s", (int)strcspn(at, "\n"), at);
    if (!load(at ? path : NULL) || failed("cuptiGetVersion", -1, cupti.GetVersion(&version))) return;
    cupti_write(CUPTI_VERSION, version, "");
    int is_new = (at = next(settings, "known")) && version > strtoul(at, NULL, 10);
    cupti_buffers_start();
    uint8_t yes = 1;
    size_t size = sizeof yes;
    cupti.ActivitySetAttribute(CLEARED_BUFFERS, &size, &yes);
    cupti.ActivitySetAttribute(BUFFER_PER_THREAD, &size, &yes);
    cupti.SetThreadIdType(SYSTEM_THREAD_IDS);
    if (failed("cuptiActivityRegisterCallbacks", -1, cupti.ActivityRegisterCallbacks(cupti_request, cupti_complete)))
        return;
    for (at = settings; (at = next(at, "kind"));) {
        long kind = strtol(at, NULL, 10);
        size_t bytes = 0;
        if (is_new && cupti.ActivityGetStructSize && !cupti.ActivityGetStructSize((int)kind, 0, &bytes))
            cupti_write(CUPTI_SIZE, (uint64_t)kind << 32 | bytes, "");
        failed("cuptiActivityEnable", kind, cupti.ActivityEnable((int)kind));
    }
    skip_calls(CUPTI_DRIVER_CALLS, cupti.ActivityEnableDriverApi);
    skip_calls(CUPTI_RUNTIME_CALLS, cupti.ActivityEnableRuntimeApi);
    if (!start_flushing()) return;
    started_in = getpid();
    atexit(end);
}

EXPORT int InitializeInjection(void);

/* Called by the driver within cuInit (CUPTI's documentation, "Injection"). */
int InitializeInjection(void) {
    if (settings[0] && ring_ready() && !started_in) start();
    return 1;
}

/* A process that ends with these runs no exit handlers, so that what is left is taken here. Programs call them from
 * handlers of signals and after vfork, while other threads hold any lock: what is called is known since the start, and
 * without CUPTI nothing else is done. */
typedef void (*Ending)(int);
static Ending endings[2];

void cupti_find_endings(void *first, void *second) { endings[0] = (Ending)first, endings[1] = (Ending)second; }

#define ENDING(name, at)                                                                                              \
    EXPORT __attribute__((noreturn)) void name(int code);                                                             \
    void name(int code) {                                                                                             \
        if (started_in) end();                                                                                        \
        if (endings[at]) endings[at](code);                                                                           \
        for (;;) syscall(SYS_exit_group, code);                                                                       \
    }
ENDING(_exit, 0)
ENDING(_Exit, 1)
