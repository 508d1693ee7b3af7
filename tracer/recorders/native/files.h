/* The files of this process in the recorder's folder: its ring, what lies beside it, and the list of programs.
 *
 * The process is somebody else's: its descriptors, limits and signals are, too. Everything here is done with no
 * descriptor of the process, where the kernel allows it (`files_apart`); no file grows beyond the limit of its size, so
 * that nobody gets SIGXFSZ; and no signal and no cancellation of a thread comes in between. */
#ifndef INTERTOKEN_FILES_H
#define INTERTOKEN_FILES_H

#include <stddef.h>
#include <stdint.h>

/* Why something was not kept. The names are those in `programs`, and of the counters `refused_...`. */
#define REASONS(X) X(space) X(size) X(files) X(memory) X(seccomp) X(folder)
enum Reason {
    REASON_NONE,
#define X(name) REASON_##name,
    REASONS(X)
#undef X
};

/* Find the recorder's folder; returns whether there is a usable one. Call it before any other thread runs. */
int files_find(void);

/* Run some work on files in a short-lived thread with a table of descriptors of its own; where the kernel cannot do
 * that (before Linux 5.9), in this thread, with descriptors above 2. Work within such work runs at once. */
int files_apart(int (*work)(void *), void *about);

/* Whether this process may still open files and make threads: it has not confined itself since it started. */
int files_free(void);

/* Why the last of the following did not succeed in this process. */
enum Reason files_reason(void);

/* Create the file of a ring; returns whether this succeeded. */
int files_new(void);

/* The bytes that the recording may still take: all its files together take at most half of what would be free without
 * them (others need shared memory, too), and no more than their limit. */
uint64_t files_room(void);

/* Map a part of the ring's file. Its blocks are allocated now, so that a full disk is detected here. NULL if there is no
 * space, or the recorder has removed the file. */
void *files_map(uint64_t at, uint64_t bytes);

/* Remove the file again. */
void files_drop(void);

/* Append bytes to the file beside the ring with this suffix, all or none; returns whether there was space. */
int files_add(const char *suffix, const char *bytes, size_t length);

/* The same for many short texts, by one thread at a time: the file grows in pieces, which are mapped, and ends with
 * zeros. A forked child begins with `(FilesText){.suffix = ...}`. */
typedef struct {
    const char *suffix;
    char *piece;
    uint64_t at; /* of the piece in the file */
    size_t used; /* of the piece */
} FilesText;
int files_append(FilesText *text, const char *bytes, size_t length);

/* Read a text file of the recorder, up to a size; returns its length, 0 if there is none. */
size_t files_read(const char *name, char *text, size_t size);

/* Append a line to the list: this process, "!" and the reason if it is not recorded, and its name. */
void files_say(enum Reason reason, const char *program);

#endif
