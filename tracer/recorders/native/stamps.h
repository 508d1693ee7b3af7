/* The device's own clock: kernels that write it into the ring, at head and tail of graphs and of runs of launches. */
#ifndef INTERTOKEN_STAMPS_H
#define INTERTOKEN_STAMPS_H

#include "device.h"
#include "driver.h"
#include "ring.h"

enum { HEAD = 0, TAIL = 1 };
enum {
    MOST_GRAPHS = 1 << 15,
    CHAIN_GRAPH = MOST_GRAPHS - 1,  /* stamps alone, one behind the other */
    INSIDE_GRAPH = MOST_GRAPHS - 2, /* stamps inside a run of launches, between its head and its tail */
};

/* Streams are handles as `stamps_stream` gives them, in the calling thread's context if they are a default one. */

/* A launch is about to come: the number of the run that it lies in, which gets a head stamp if it begins here. Of some
 * launches, chosen by chance, it is to be known how long they take: BEHIND. */
uint32_t stamps_run(uint8_t context, Stream on);

/* The launch was made: the number that is recorded, 0 if the run has ended meanwhile, so that its tail may come before
 * the launch. */
uint32_t stamps_ran(uint8_t context, Stream on, uint32_t number, Result result);

/* A copy was put on a stream: the number of the run that it lies in, if it is to be known how long it takes; else 0. */
uint32_t stamps_beside(uint8_t context, Stream on, Result result);

/* A wait, a fetch, or whatever else ends a run is about to come on a stream, or in a whole context. */
void stamps_end(uint8_t context, Stream on);
void stamps_end_all(uint8_t context);

/* The work on a stream has ended, and nobody knows when. */
void stamps_leave(uint8_t context, Stream on);

/* A stream is about to end; another may get its handle. */
void stamps_forget(uint8_t context, Stream on);

/* Somebody waits, or has learned that something has ended: the device may have nothing to do afterwards. */
void stamps_wait(void);

/* A stamped graph was put on a stream. */
void stamps_graph(uint8_t context, Stream on);

/* Put a head before the roots and a tail behind the leaves of a graph; whether both are there. */
int stamps_add(Device *device, Graph graph, uint16_t id, Node pair[2]);
void stamps_remove(Node pair[2]);

/* Whether work that is put on a stream now runs, and is not captured into a graph. */
int stamps_runs_now(Stream stream);

/* A forked child has neither runs nor graphs. */
void stamps_fork(void);
void graphs_fork(void);

/* The handle that stands for a stream in records. */
static inline Stream stamps_stream(Stream stream, int own) { return stream || !own ? stream : (Stream)2; }

#endif
