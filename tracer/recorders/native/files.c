#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FOLDER "INTERTOKEN_LIGHT"
#define BYTES "INTERTOKEN_LIGHT_BYTES" /* limit for all rings of a recording */
#define DEFAULT_BYTES (UINT64_C(2) << 30)
enum { MOST_RINGS = 1000 /* of one process: each exec makes one */, PROGRAMS_BYTES = 1 << 16 };

static char *folder_path; /* from the environment at start */
static char ring_name[32];
static struct stat ring_file;

/* The recorder's folder, which must be accessible only to this user; -1 if there is none. */
static int open_folder(void) {
    struct stat found;
    if (!folder_path || folder_path[0] != '/') return -1;
    int folder = open(folder_path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) return -1;
    int is_mine = fstat(folder, &found) == 0 && found.st_uid == geteuid();
    if (is_mine && !(found.st_mode & (S_IRWXG | S_IRWXO))) return folder;
    close(folder);
    return -1;
}

int files_find(void) {
    const char *path = getauxval(AT_SECURE) ? NULL : getenv(FOLDER);
    folder_path = path ? strdup(path) : NULL;
    int folder = open_folder();
    if (folder >= 0) close(folder);
    return folder >= 0;
}

/* There may be another ring of this process, from before it called exec. */
int files_new(void) {
    int folder = open_folder(), file = -1;
    if (folder < 0) return 0;
    for (unsigned number = 0; number < MOST_RINGS; number++) {
        snprintf(ring_name, sizeof ring_name, "%d-%u.ring", (int)getpid(), number);
        file = openat(folder, ring_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
        if (file >= 0 || errno != EEXIST) break;
    }
    int is_there = file >= 0 && !fstat(file, &ring_file);
    if (file >= 0) close(file);
    close(folder);
    return is_there;
}

/* Whether half of the file system stays free (others need shared memory, too) and all rings are within their limit. */
static int has_room(int folder, uint64_t bytes) {
    struct statvfs space;
    struct stat found;
    const char *most = getenv(BYTES);
    if (fstatvfs(folder, &space) || bytes > (uint64_t)space.f_bavail * space.f_frsize / 2) return 0;
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again < 0 ? NULL : fdopendir(again);
    if (!list) return 0;
    for (struct dirent *each; (each = readdir(list));)
        if (!fstatat(folder, each->d_name, &found, AT_SYMLINK_NOFOLLOW) && S_ISREG(found.st_mode))
            bytes += (uint64_t)found.st_blocks * 512;
    closedir(list);
    return bytes <= (most ? strtoull(most, NULL, 10) : DEFAULT_BYTES);
}

void *files_map(uint64_t at, uint64_t bytes) {
    struct stat found;
    void *map = MAP_FAILED;
    int folder = open_folder();
    if (folder < 0) return NULL;
    int file = openat(folder, ring_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    int is_there = file >= 0 && !fstat(file, &found);
    int is_ours = is_there && found.st_dev == ring_file.st_dev && found.st_ino == ring_file.st_ino;
    if (is_ours && has_room(folder, bytes)) {
        int is_taken = posix_fallocate(file, (off_t)at, (off_t)bytes) == 0;
        if (is_taken) map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, (off_t)at);
        if (map == MAP_FAILED && ftruncate(file, found.st_size)) errno = 0; /* frees blocks allocated so far */
    }
    if (file >= 0) close(file);
    close(folder);
    return map == MAP_FAILED ? NULL : map;
}

void files_drop(void) {
    int folder = open_folder();
    if (folder < 0) return;
    unlinkat(folder, ring_name, 0);
    close(folder);
}

/* A part that did not fit is removed again. */
static int write_whole(int file, const char *bytes, size_t length) {
    struct stat before;
    if (fstat(file, &before)) return 0;
    ssize_t written = write(file, bytes, length);
    if (written == (ssize_t)length) return 1;
    if (written > 0 && ftruncate(file, before.st_size)) errno = 0;
    return 0;
}

int files_add(const char *suffix, const char *bytes, size_t length) {
    char name[sizeof ring_name + 16];
    int folder = open_folder();
    if (folder < 0) return 0;
    snprintf(name, sizeof name, "%s%s", ring_name, suffix);
    int file = openat(folder, name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    int is_written = file >= 0 && has_room(folder, length) && write_whole(file, bytes, length);
    if (file >= 0) close(file);
    close(folder);
    return is_written;
}

size_t files_read(const char *name, char *text, size_t size) {
    struct stat found;
    int folder = open_folder();
    if (folder < 0) return 0;
    int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int is_mine = file >= 0 && !fstat(file, &found) && S_ISREG(found.st_mode) && found.st_uid == geteuid();
    ssize_t length = is_mine ? read(file, text, size - 1) : 0;
    if (file >= 0) close(file);
    close(folder);
    if (length < 0) length = 0;
    text[length] = 0;
    return (size_t)length;
}

void files_say(const char *mark, const char *program) {
    char line[192];
    struct stat found;
    int folder = open_folder();
    if (folder < 0) return;
    int file = openat(folder, "programs", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    int length = snprintf(line, sizeof line, "%d%s %s\n", (int)getpid(), mark, program);
    int fits = file >= 0 && !fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size < PROGRAMS_BYTES;
    if (fits && write(file, line, (size_t)length) < 0) errno = 0;
    if (file >= 0) close(file);
    close(folder);
}
