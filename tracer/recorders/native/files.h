/* The files of this process in the recorder's folder: its ring, and the list of programs. */
#ifndef INTERTOKEN_FILES_H
#define INTERTOKEN_FILES_H

#include <stdint.h>

/* Look where the recorder's folder is; whether there is one that may be written to. Before any other thread runs. */
int files_find(void);

/* Make the file of a ring; whether it could be. */
int files_new(void);

/* Map a part of it. Its blocks are taken now, so that a full disk shows here. NULL if there is no room, or the recorder
 * has taken the file away. */
void *files_map(uint64_t at, uint64_t bytes);

/* Take the file away again. */
void files_drop(void);

/* Append a line to the list: this process, a mark, and its name. */
void files_say(const char *mark, const char *program);

#endif
