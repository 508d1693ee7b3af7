#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "held.h"
#include "ring.h"

#define FOLDER "INTERTOKEN_LIGHT"
#define BYTES "INTERTOKEN_LIGHT_BYTES" /* limit for all rings of a recording */
#define DEFAULT_BYTES (UINT64_C(2) << 30)
#define ROOM "room" /* the file that is locked while room is looked for and taken */
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
enum { UNSHARE = 2 /* CLOSE_RANGE_UNSHARE */ };
enum { MOST_RINGS = 1000 /* of one process: each exec makes one */, PROGRAMS_BYTES = 1 << 16 };
enum { STACK_BYTES = 1 << 18, PIECE_BYTES = 1 << 16, LOCK_TRIES = 1000 };

static char *folder_path; /* from the environment at start */
static uint64_t most_bytes = DEFAULT_BYTES;
static int was_confined; /* whether there were filters of system calls (seccomp) at start, */
static long filters;     /* and how many */
static char ring_name[32];
static struct stat ring_file;
static _Atomic enum Reason reason;
static _Atomic int is_lock_stuck;
enum { BORROWED_TABLE = 1, OWN_TABLE = 2 };
static _Thread_local __attribute__((tls_model("initial-exec"))) int is_away; /* within `files_apart`: whose descriptors */

enum Reason files_reason(void) { return atomic_load(&reason); }

/* Note why something failed, by default as the system says. */
static int refuse(enum Reason why) {
    if (!why) {
        int no_files = errno == EMFILE || errno == ENFILE, no_space = errno == ENOSPC || errno == EDQUOT;
        why = no_files ? REASON_files : errno == ENOMEM ? REASON_memory : no_space ? REASON_space
            : errno == EFBIG ? REASON_size : REASON_folder;
    }
    atomic_store(&reason, why);
    return 0;
}

static void shut(int file) {
    int before = errno;
    if (file >= 0) close(file);
    errno = before;
}

/* A descriptor above 2: the program's output must not land in a file of ours. */
static int above(int file) {
    if (file < 0 || file > 2 || is_away == OWN_TABLE) return file;
    int moved = fcntl(file, F_DUPFD_CLOEXEC, 3);
    shut(file);
    return moved;
}

/* The recorder's folder, which must be accessible only to this user; -1 if there is none. */
static int open_folder(void) {
    struct stat state;
    if (!folder_path || folder_path[0] != '/') return errno = ENOENT, -1;
    int folder = above(open(folder_path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder < 0) return -1;
    int is_mine = fstat(folder, &state) == 0 && state.st_uid == geteuid();
    if (is_mine && !(state.st_mode & (S_IRWXG | S_IRWXO))) return folder;
    shut(folder);
    return errno = EACCES, -1;
}

static int open_in(int folder, const char *name, int flags) {
    int file = above(openat(folder, name, flags | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (file >= 0 && flags & O_CREAT) fchmod(file, S_IRUSR | S_IWUSR); /* whatever the program's umask */
    return file;
}

/* The number of filters of system calls (seccomp) that this process has: a program that has confined itself may be
 * killed for what we do. Source: proc_pid_status(5). */
static long count_filters(void) {
    static const char *const names[] = {"\nSeccomp_filters:\t", "\nSeccomp:\t"};
    char text[4096];
    int file = above(open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC));
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    shut(file);
    text[length > 0 ? length : 0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *line = strstr(text, names[i]);
        if (line) return strtol(line + strlen(names[i]), NULL, 10);
    }
    return 0;
}

int files_find(void) {
    const char *path = getauxval(AT_SECURE) ? NULL : getenv(FOLDER), *most = getenv(BYTES);
    folder_path = path ? strdup(path) : NULL;
    if (most) most_bytes = strtoull(most, NULL, 10);
    int folder = open_folder();
    if (folder < 0) return 0;
    shut(folder);
    was_confined = prctl(PR_GET_SECCOMP) > 0;
    if (was_confined) filters = count_filters();
    return 1;
}

typedef struct {
    int (*work)(void *);
    void *about;
    int result, is_done;
} Errand;

/* Whether a program without filters at start has got some. It may neither open a file now nor make a thread. */
static int is_confined_anew(void) {
    return !was_confined && prctl(PR_GET_SECCOMP) > 0 && !refuse(REASON_seccomp);
}

/* The same for one that had filters at start, as in a container. */
static int is_confined(void) { return was_confined && count_filters() > filters && !refuse(REASON_seccomp); }

/* An empty table of descriptors for this thread alone: what the program opens and closes meanwhile is no matter, nor how
 * many it has. Nothing of the program's is closed, because nothing is copied (close_range(2), CLOSE_RANGE_UNSHARE). */
static int go(void *given) {
    Errand *errand = given;
    if ((errand->is_done = is_confined()) || syscall(SYS_close_range, 0u, ~0u, UNSHARE)) return 0;
    is_away = OWN_TABLE;
    errand->result = errand->work(errand->about);
    errand->is_done = 1;
    return 0;
}

/* A thread of the kernel's alone: pthread_create would allocate memory, which the handler of a signal may not. It uses the
 * thread-local variables of this thread, which waits for it. Source: clone(2), CLONE_CHILD_CLEARTID. */
static void in_a_thread(Errand *errand) {
#if !defined(__SANITIZE_THREAD__) /* which does not know of such threads */
    const int how = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                    CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    _Atomic pid_t runs = 1;
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) return;
    is_away = BORROWED_TABLE;
    if (clone(go, stack + STACK_BYTES, how, errand, &runs, NULL, &runs) > 0)
        for (pid_t now; (now = atomic_load(&runs));) syscall(SYS_futex, &runs, FUTEX_WAIT, now, NULL, NULL, 0);
    is_away = 0;
    munmap(stack, STACK_BYTES);
#else
    (void)go, (void)errand;
#endif
}

/* One at a time: locks of files are of the whole process. */
static void in_this_thread(Errand *errand) {
    static Lock lock = LOCK_OPEN;
    static _Thread_local __attribute__((tls_model("initial-exec"))) uint8_t has_lock;
    if (!lock_take(&lock, &has_lock)) return;
    is_away = BORROWED_TABLE;
    if (!is_confined()) errand->result = errand->work(errand->about);
    is_away = 0;
    lock_give(&lock, &has_lock);
}

int files_apart(int (*work)(void *), void *about) {
    const struct timespec at_once = {0};
    sigset_t waiting, limit;
    siginfo_t who;
    Held held;
    Errand errand = {work, about, 0, 0};
    if (is_away) return work(about);
    atomic_store(&reason, REASON_NONE);
    if (is_confined_anew()) return 0;
    hold(&held);
    in_a_thread(&errand);
    if (!errand.is_done) {
        sigpending(&waiting);
        in_this_thread(&errand);
        sigemptyset(&limit), sigaddset(&limit, SIGXFSZ);
        if (!sigismember(&waiting, SIGXFSZ)) sigtimedwait(&limit, &who, &at_once); /* ours, if the limit changed */
    }
    release(&held);
    return errand.result;
}

static int is_free(void *nothing) { return (void)nothing, 1; }
int files_free(void) { return files_apart(is_free, NULL); }

/* Whether a file may have that size: beyond the limit there would be SIGXFSZ (getrlimit(2), RLIMIT_FSIZE). */
static int may_reach(uint64_t size) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY || size <= limit.rlim_cur ||
           refuse(REASON_size);
}

/* There may be another ring of this process, from before it called exec. */
static int new_file(void *nothing) {
    int folder = open_folder(), file = -1;
    if (folder < 0) return refuse(REASON_NONE);
    for (unsigned number = 0; number < MOST_RINGS; number++) {
        snprintf(ring_name, sizeof ring_name, "%d-%u.ring", (int)getpid(), number);
        file = open_in(folder, ring_name, O_RDWR | O_CREAT | O_EXCL);
        if (file >= 0 || errno != EEXIST) break;
    }
    int is_there = file >= 0 && !fstat(file, &ring_file);
    if (!is_there) refuse(REASON_NONE);
    shut(file), shut(folder);
    return (void)nothing, is_there;
}

int files_new(void) { return files_apart(new_file, NULL); }

/* The bytes that the files in the folder take. Without opendir, which allocates memory. */
static uint64_t taken(int folder) {
    struct {
        uint64_t inode;
        int64_t offset;
        unsigned short length;
        unsigned char type;
        char name[];
    } *each;
    char entries[2048] __attribute__((aligned(8)));
    struct stat state;
    uint64_t bytes = 0;
    int list = open_in(folder, ".", O_RDONLY | O_DIRECTORY);
    for (long length; list >= 0 && (length = syscall(SYS_getdents64, list, entries, sizeof entries)) > 0;)
        for (long at = 0; at < length; at += each->length) {
            each = (void *)(entries + at);
            if (!fstatat(folder, each->name, &state, AT_SYMLINK_NOFOLLOW) && S_ISREG(state.st_mode))
                bytes += (uint64_t)state.st_blocks * 512;
        }
    shut(list);
    return list < 0 ? UINT64_MAX : bytes;
}

static uint64_t room_in(int folder) {
    struct statvfs space;
    uint64_t used = taken(folder);
    if (used == UINT64_MAX || fstatvfs(folder, &space)) return 0;
    uint64_t most = ((uint64_t)space.f_bavail * space.f_frsize + used) / 2;
    if (most > most_bytes) most = most_bytes;
    return most > used ? most - used : 0;
}

static int find_room(void *room) {
    int folder = open_folder();
    *(uint64_t *)room = folder < 0 ? 0 : room_in(folder);
    shut(folder);
    return 1;
}

uint64_t files_room(void) {
    uint64_t room = 0;
    files_apart(find_room, &room);
    return room;
}

/* Other processes that begin at the same time wait for each other, but never long for one that is stopped. The lock goes
 * with the descriptor. */
static int lock_room(int folder) {
    const struct timespec pause = {.tv_nsec = 1000000};
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int file = open_in(folder, ROOM, O_RDWR | O_CREAT);
    for (int tries = 0; file >= 0 && fcntl(file, F_SETLK, &whole); tries++) {
        if (tries >= LOCK_TRIES || atomic_load(&is_lock_stuck)) {
            atomic_store(&is_lock_stuck, 1);
            shut(file);
            return errno = ENOSPC, -1;
        }
        nanosleep(&pause, NULL);
    }
    return file;
}

/* Allocate a part of a file and map it; the lock is held. */
static void *grow(int folder, int file, uint64_t at, uint64_t bytes) {
    struct stat state;
    if (!may_reach(at + bytes) || fstat(file, &state)) return NULL;
    if (room_in(folder) < bytes) return refuse(REASON_space), NULL;
    int failed = posix_fallocate(file, (off_t)at, (off_t)bytes);
    void *map = failed ? MAP_FAILED
                       : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, (off_t)at);
    if (map != MAP_FAILED) return map;
    errno = failed ? failed : errno;
    refuse(failed ? REASON_NONE : REASON_memory);
    if (ftruncate(file, state.st_size)) errno = 0; /* frees blocks allocated so far */
    return NULL;
}

typedef struct {
    const char *name;
    int flags;
    uint64_t at, bytes;
    void *map;
} Part;

static int map_part(void *given) {
    Part *part = given;
    struct stat state;
    int folder = open_folder();
    int room = folder < 0 ? -1 : lock_room(folder);
    int file = room < 0 ? -1 : open_in(folder, part->name, O_RDWR | part->flags);
    if (file < 0 || fstat(file, &state)) refuse(REASON_NONE);
    else if (!part->flags && (state.st_dev != ring_file.st_dev || state.st_ino != ring_file.st_ino))
        refuse(REASON_folder);
    else part->map = grow(folder, file, part->at, part->bytes);
    shut(file), shut(room), shut(folder);
    return part->map != NULL;
}

/* Count why a part is missing, once there is a ring that says so. */
static void count_refused(void) {
    static const enum Counter counters[] = {
        COUNTER_COUNT,
#define X(name) COUNT_refused_##name,
        REASONS(X)
#undef X
    };
    enum Reason why = files_reason();
    if (why) ring_count(counters[why], 1);
}

void *files_map(uint64_t at, uint64_t bytes) {
    Part part = {ring_name, 0, at, bytes, NULL};
    if (!files_apart(map_part, &part)) count_refused();
    return part.map;
}

int files_append(FilesText *text, const char *bytes, size_t length) {
    size_t left = text->piece ? PIECE_BYTES - text->used : 0;
    char name[sizeof ring_name + 16];
    if (length > left) {
        snprintf(name, sizeof name, "%s%s", ring_name, text->suffix);
        Part next = {name, O_CREAT, text->piece ? text->at + PIECE_BYTES : 0, PIECE_BYTES, NULL};
        if (length - left > PIECE_BYTES) return 0;
        if (!files_apart(map_part, &next)) return count_refused(), 0;
        if (text->piece) memcpy(text->piece + text->used, bytes, left), munmap(text->piece, PIECE_BYTES);
        text->piece = next.map, text->at = next.at, text->used = 0;
        bytes += left, length -= left;
    }
    memcpy(text->piece + text->used, bytes, length);
    text->used += length;
    return 1;
}

static int drop(void *nothing) {
    int folder = open_folder();
    if (folder >= 0) unlinkat(folder, ring_name, 0);
    shut(folder);
    return (void)nothing, 1;
}

void files_drop(void) { files_apart(drop, NULL); }

/* A part that did not fit is removed again. */
static int write_whole(int file, const char *bytes, size_t length) {
    struct stat before;
    if (fstat(file, &before) || !may_reach((uint64_t)before.st_size + length)) return 0;
    ssize_t written = write(file, bytes, length);
    if (written == (ssize_t)length) return 1;
    if (written > 0 && ftruncate(file, before.st_size)) errno = 0;
    return refuse(written < 0 ? REASON_NONE : REASON_space);
}

typedef struct {
    const char *suffix, *bytes;
    size_t length;
} Block;

static int add(void *given) {
    const Block *block = given;
    char name[sizeof ring_name + 16];
    int folder = open_folder();
    snprintf(name, sizeof name, "%s%s", ring_name, block->suffix);
    int file = folder < 0 ? -1 : open_in(folder, name, O_WRONLY | O_CREAT | O_APPEND);
    int is_written = 0;
    if (file < 0) refuse(REASON_NONE);
    else if (room_in(folder) < block->length) refuse(REASON_space);
    else is_written = write_whole(file, block->bytes, block->length);
    shut(file), shut(folder);
    return is_written;
}

int files_add(const char *suffix, const char *bytes, size_t length) {
    Block block = {suffix, bytes, length};
    int is_added = files_apart(add, &block);
    if (!is_added) count_refused();
    return is_added;
}

size_t files_read(const char *name, char *text, size_t size) {
    struct stat state;
    int folder = open_folder();
    if (folder < 0) return 0;
    int file = open_in(folder, name, O_RDONLY);
    int is_mine = file >= 0 && !fstat(file, &state) && S_ISREG(state.st_mode) && state.st_uid == geteuid();
    ssize_t length = is_mine ? read(file, text, size - 1) : 0;
    shut(file), shut(folder);
    if (length < 0) length = 0;
    text[length] = 0;
    return (size_t)length;
}

typedef struct {
    enum Reason reason;
    const char *program;
} Word;

/* A name with control characters would be a line of its own, or speak to a terminal. */
static size_t escape(char *to, const char *name) {
    size_t length = 0;
    for (; *name; name++)
        length += (size_t)sprintf(to + length, (unsigned char)*name < ' ' || *name == 127 ? "\\x%02x" : "%c",
                                  (unsigned char)*name);
    return length;
}

static int say(void *given) {
    static const char *const reasons[] = {
        "",
#define X(name) "!" #name,
        REASONS(X)
#undef X
    };
    const Word *word = given;
    char line[512];
    struct stat state;
    int folder = open_folder();
    if (folder < 0) return 0;
    int file = open_in(folder, "programs", O_WRONLY | O_CREAT | O_APPEND);
    size_t length = (size_t)snprintf(line, 64, "%d%s ", (int)getpid(), reasons[word->reason]);
    length += escape(line + length, word->program);
    line[length++] = '\n';
    if (file >= 0 && !fstat(file, &state) && S_ISREG(state.st_mode) && state.st_size < PROGRAMS_BYTES)
        write_whole(file, line, length);
    shut(file), shut(folder);
    return 1;
}

/* At start no other thread runs yet. */
void files_say(enum Reason why, const char *program) {
    Word word = {why, program};
    if (!why) say(&word);
    else files_apart(say, &word);
}
