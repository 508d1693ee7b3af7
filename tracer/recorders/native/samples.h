/* Samples of what costs time to measure, limited to a share of the time, and to a quarter of it while there were many
 * lately. What was sampled least comes first, and once all of it was sampled often, candidates are chosen at random. */
#ifndef INTERTOKEN_SAMPLES_H
#define INTERTOKEN_SAMPLES_H

#include <stdatomic.h>
#include <stdint.h>

/* One kind of sample. Threads may lose each other's counts. */
typedef struct {
    _Atomic uint64_t next;         /* the tick from which there is time for the next sample */
    _Atomic uint32_t passed, skip; /* candidates since the last sample, and those to skip before the next one */
    _Atomic uint32_t enough;       /* a thing with more samples than that needs no further one for now */
    _Atomic uint64_t spent, since; /* ticks that the samples have taken, as far as not forgotten, and since which tick */
} Samples;

/* Whether to sample a candidate; `what` it is an example of, as any number. */
int samples_choose(Samples *of, uint64_t now, uint64_t what);

/* An example of that was sampled. */
void samples_count(uint64_t what);

/* Stamps have taken the time since then: the next sample comes when that is no more than its share of the time. */
void samples_spend(Samples *of, uint64_t since);

/* A forked child has sampled nothing. */
void samples_fork(void);

#endif
