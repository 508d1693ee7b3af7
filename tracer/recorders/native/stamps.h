/* The device's own clock: kernels that write it into the ring, at head and tail of graphs and of runs of launches. */
#ifndef INTERTOKEN_STAMPS_H
#define INTERTOKEN_STAMPS_H

#include "driver.h"
#include "ring.h"

enum { HEAD = 0, TAIL = 1 };
enum { MOST_GRAPHS = 1 << 15, CHAIN_GRAPH = MOST_GRAPHS - 1 /* stamps alone, one behind the other */ };

/* A launch is about to come: the number of the run that it lies in, which gets a head stamp if it begins here. */
uint32_t stamps_run(Stream stream, int own);

/* A wait, a fetch, or whatever else ends a run is about to come on a stream, or on all streams of this thread. */
void stamps_end(Stream stream, int own);
void stamps_end_all(void);

/* This thread waits, or has learned that something has ended: the device may have nothing to do afterwards. */
void stamps_wait(void);

/* A stamped graph was put on a stream, on which no run is open. */
void stamps_graph(Stream stream, int own);

/* Put a head before the roots and a tail behind the leaves of a graph; whether both are there. */
int stamps_add(Graph graph, uint16_t id, Node pair[2]);
void stamps_remove(Node pair[2]);

/* Whether work that is put on a stream now runs, and is not captured into a graph. */
int stamps_runs_now(Stream stream);

/* The handle that stands for a stream in records. */
static inline Stream stamps_stream(Stream stream, int own) { return stream || !own ? stream : (Stream)2; }

#endif
