/* The files of this process in the recorder's folder: its ring and the list of programs. */
#ifndef INTERTOKEN_FILES_H
#define INTERTOKEN_FILES_H

#include <stddef.h>
#include <stdint.h>

/* Find the recorder's folder; returns whether there is a usable one. Call it before any other thread runs. */
int files_find(void);

/* Create the file of a ring; returns whether this succeeded. */
int files_new(void);

/* Map a part of it. Its blocks are allocated now, so that a full disk is detected here. NULL if there is no space, or
 * the recorder has removed the file. */
void *files_map(uint64_t at, uint64_t bytes);

/* Remove the file again. */
void files_drop(void);

/* Append bytes to the file beside the ring with this suffix, all or none; returns whether there was space. */
int files_add(const char *suffix, const char *bytes, size_t length);

/* Read a text file of the recorder, up to a size; returns its length, 0 if there is none. */
size_t files_read(const char *name, char *text, size_t size);

/* Append a line to the list: this process, a mark, and its name. */
void files_say(const char *mark, const char *program);

#endif
