#include "samples.h"

#include "device.h"
#include "hot.h"
#include "ring.h"

enum {
    BURST_NS = 500000,   /* of stamps, after a time without launches */
    ENOUGH_NS = 4000000, /* of stamps of a kind, of which half is forgotten every so often; */
    FORGET_S = 8,
    LATER = 4,           /* with more than that its share is divided by this */
    OFTEN = 4,           /* samples of one thing */
    BINS = 2048,         /* of things, by a hash */
};

/* How often each thing was sampled, up to OFTEN. */
HOT_DATA static _Atomic uint8_t sampled[BINS];

static _Atomic uint8_t *sampled_of(uint64_t what) {
    return &sampled[what * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (BINS - 1)];
}

void samples_count(uint64_t what) {
    _Atomic uint8_t *of = sampled_of(what);
    uint8_t before = atomic_load_explicit(of, memory_order_relaxed);
    if (before < OFTEN) atomic_store_explicit(of, before + 1, memory_order_relaxed);
}

void samples_fork(void) {
    for (_Atomic uint8_t *of = sampled; of < sampled + BINS; of++)
        if (*of) *of = 0;
}

/* The ticks until the next sample may come, per tick of this one. An engine that decodes after half a minute of
 * loading and warming up gets its whole share for it. */
static uint64_t apart_now(Samples *of, uint64_t now, uint64_t spent) {
    uint64_t each = FORGET_S * 1000 * ring.ticks_per_ms;
    uint64_t since = atomic_load_explicit(&of->since, memory_order_relaxed), times = (now - since) / each;
    uint64_t before = atomic_load_explicit(&of->spent, memory_order_relaxed) >> (times < 63 ? times : 63);
    atomic_store_explicit(&of->since, since + times * each, memory_order_relaxed);
    atomic_store_explicit(&of->spent, before + spent, memory_order_relaxed);
    return device_driver()->apart * (ring_ns(before) < ENOUGH_NS ? 1 : LATER);
}

/* Once there is time, what was sampled less often than other things is chosen when it comes next: of launches that
 * recur in each step, some would otherwise long be left to chance. If nothing like that comes, a random number of
 * candidates is skipped: otherwise those after a pause of the host would be chosen most often. */
HOT int samples_choose(Samples *of, uint64_t now, uint64_t what) {
    uint32_t passed = atomic_load_explicit(&of->passed, memory_order_relaxed);
    uint32_t skip = atomic_load_explicit(&of->skip, memory_order_relaxed);
    if (now < atomic_load_explicit(&of->next, memory_order_relaxed)) {
        atomic_store_explicit(&of->passed, passed + 1, memory_order_relaxed);
        return 0;
    }
    if (passed) {
        uint64_t chance = now * 0x9e3779b97f4a7c15u >> 48;
        skip = (uint32_t)(passed * chance >> 16);
        atomic_store_explicit(&of->passed, 0, memory_order_relaxed);
    }
    uint32_t enough = atomic_load_explicit(&of->enough, memory_order_relaxed);
    uint32_t times = atomic_load_explicit(sampled_of(what), memory_order_relaxed);
    int is_rare = times < OFTEN && times <= enough;
    if (!is_rare && !skip && enough < OFTEN) atomic_store_explicit(&of->enough, enough + 1, memory_order_relaxed);
    atomic_store_explicit(&of->skip, is_rare || !skip ? 0 : skip - 1, memory_order_relaxed);
    return is_rare || !skip;
}

/* What was left of the share before, when nothing was launched, is added up to BURST_NS. */
COLD void samples_spend(Samples *of, uint64_t since) {
    uint64_t now = ring_now(), next = atomic_load_explicit(&of->next, memory_order_relaxed), later;
    uint64_t apart = apart_now(of, now, now - since), burst = ring_ticks(BURST_NS) * apart;
    uint64_t least = burst < now ? now - burst : 0;
    ring_count(COUNT_run_stamps_ns, ring_ns(now - since));
    do later = (next > least ? next : least) + (now - since) * apart;
    while (!atomic_compare_exchange_weak(&of->next, &next, later));
}
