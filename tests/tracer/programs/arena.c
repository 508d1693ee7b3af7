/* A malloc that is preloaded, as jemalloc is: from an arena of its own. It ends the process if it is given what it
 * never gave. With ARENA_TRACES it asks dlsym for the next malloc within the first call, as tracers of the heap do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 1 << 26, MARK = 0x5a17 };
typedef struct {
    size_t size, mark;
} Head;
static char arena[BYTES] __attribute__((aligned(64)));
static size_t used;
static int is_asked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *why) {
    if (write(2, why, strlen(why)) < 0) abort();
    abort();
}

static void *take(size_t size, size_t align) {
    if (align < 16) align = 16;
    pthread_mutex_lock(&lock);
    size_t at = (used + sizeof(Head) + align - 1) / align * align;
    if (at + size <= BYTES) used = at + size;
    pthread_mutex_unlock(&lock);
    if (at + size > BYTES) return errno = ENOMEM, NULL;
    *(Head *)(arena + at - sizeof(Head)) = (Head){size, MARK};
    return arena + at;
}

static Head *head_of(void *given) {
    if ((char *)given < arena || (char *)given >= arena + BYTES) die("not of this malloc\n");
    Head *head = (Head *)given - 1;
    if (head->mark != MARK) die("freed twice\n");
    return head;
}

void *malloc(size_t size) {
    if (!is_asked++ && getenv("ARENA_TRACES") && !dlsym(RTLD_NEXT, "malloc")) die("there is no next malloc\n");
    return take(size, 16);
}
void *calloc(size_t count, size_t size) { return take(count * size, 16); } /* the arena is zero, and never used again */
void *realloc(void *old, size_t size) {
    void *new = take(size, 16);
    if (old && new) memcpy(new, old, head_of(old)->size < size ? head_of(old)->size : size), free(old);
    return new;
}
void free(void *old) {
    if (old) head_of(old)->mark = 0;
}
int posix_memalign(void **to, size_t align, size_t size) { return (*to = take(size, align)) ? 0 : ENOMEM; }
void *aligned_alloc(size_t align, size_t size) { return take(size, align); }
void *memalign(size_t align, size_t size) { return take(size, align); }
