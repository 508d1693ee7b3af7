#include "samples.h"

#include "device.h"
#include "hot.h"
#include "ring.h"

enum { BURST_NS = 500000 /* of stamps, after a time without launches */ };

/* Once there is time, a random number of candidates is skipped: otherwise those after a pause of the host would be
 * chosen most often. */
HOT int samples_choose(Samples *of, uint64_t now) {
    uint32_t passed = atomic_load_explicit(&of->passed, memory_order_relaxed);
    uint32_t skip = atomic_load_explicit(&of->skip, memory_order_relaxed);
    int has_time = now >= atomic_load_explicit(&of->next, memory_order_relaxed);
    if (has_time && passed) {
        uint64_t chance = now * 0x9e3779b97f4a7c15u >> 48;
        skip = (uint32_t)(passed * chance >> 16);
        passed = 0;
    } else if (!has_time) {
        passed++;
    }
    atomic_store_explicit(&of->passed, passed, memory_order_relaxed);
    atomic_store_explicit(&of->skip, has_time && skip ? skip - 1 : skip, memory_order_relaxed);
    return has_time && !skip;
}

/* What was left of the share before, when nothing was launched, is added up to BURST_NS. */
COLD void samples_spend(Samples *of, uint64_t since) {
    uint64_t now = ring_now(), next = atomic_load_explicit(&of->next, memory_order_relaxed), later;
    uint64_t apart = (uint64_t)((double)(now - since) * device_driver()->apart);
    double burst = BURST_NS / 1e3 * ring.ticks_per_us * device_driver()->apart;
    uint64_t least = burst < (double)now ? now - (uint64_t)burst : 0;
    ring_count(COUNT_run_stamps_ns, (uint64_t)((double)(now - since) * 1e3 / ring.ticks_per_us));
    do later = (next > least ? next : least) + apart;
    while (!atomic_compare_exchange_weak(&of->next, &next, later));
}
