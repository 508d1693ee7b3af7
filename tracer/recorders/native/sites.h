/* The call sites of recorded calls: stacks of return addresses, each written once. */
#ifndef INTERTOKEN_SITES_H
#define INTERTOKEN_SITES_H

#include <stdint.h>

enum { SITE_SHIFT = 22 }; /* a thread id is at most 2^22 (PID_MAX_LIMIT); a record holds its site above it */

/* Whether they are wanted (INTERTOKEN_LIGHT_SITES). Call it before any other thread runs. */
int sites_start(void);

/* The site of the caller, to be added to a record's thread; 0 if it is unknown. */
uint32_t sites_here(void);

/* A forked child has its own sites. */
void sites_fork(void);

#endif
