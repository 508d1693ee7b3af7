/* The device's own clock: kernels that write it to the ring, at the head and tail of graphs and runs of launches. */
#ifndef INTERTOKEN_STAMPS_H
#define INTERTOKEN_STAMPS_H

#include "device.h"
#include "driver.h"
#include "ring.h"

enum { HEAD = 0, TAIL = 1 };
enum {
    MOST_GRAPHS = 1 << 15,
    CHAIN_GRAPH = MOST_GRAPHS - 1,  /* a chain of only stamps */
    INSIDE_GRAPH = MOST_GRAPHS - 2, /* stamps inside a run of launches, between its head and its tail */
};

/* Streams are handles from `stamps_stream`; default streams belong to the calling thread's context. */

/* Before a launch of a kernel: the number of its run, which gets a head stamp if it starts here. BEHIND marks launches
 * that are sampled to measure their duration. */
uint32_t stamps_run(uint8_t context, Stream on, const void *kernel);

/* After a launch: the number to record, 0 if the run has ended in the meantime, so that its tail may precede the
 * launch. */
uint32_t stamps_ran(uint8_t context, Stream on, uint32_t number, Result result);

/* After a copy was enqueued: the number of its run if its duration is measured; else 0. */
uint32_t stamps_beside(uint8_t context, Stream on, Result result);

/* Before a wait, a fetch, or anything else that ends a run on a stream, or all runs of a context. */
void stamps_end(uint8_t context, Stream on);
void stamps_end_all(uint8_t context);

/* The work on a stream has ended at an unknown time. */
void stamps_leave(uint8_t context, Stream on);

/* Before a stream waits for an event, or is destroyed and its handle may be reused: when it goes on does not follow from
 * the work before. */
void stamps_forget(uint8_t context, Stream on);

/* A thread waits, or has learned that work has ended: the device may be idle afterwards. */
void stamps_wait(void);

/* A stamped graph was launched on a stream. */
void stamps_graph(uint8_t context, Stream on);

/* Add a head before the roots and a tail after the leaves of a graph; returns whether both were added. */
int stamps_add(Device *device, Graph graph, uint16_t id, Node pair[2]);
void stamps_remove(Node pair[2]);

/* Whether work enqueued on a stream runs, rather than being captured into a graph. */
int stamps_runs_now(Stream stream);

/* A forked child has no runs and no graphs. */
void stamps_fork(void);
void graphs_fork(void);

/* The handle of a stream in records. */
static inline Stream stamps_stream(Stream stream, int own) { return stream || !own ? stream : (Stream)2; }

#endif
