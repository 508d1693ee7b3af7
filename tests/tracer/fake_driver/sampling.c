/* The recorder's samples (samples.c) with a clock that a test moves, compiled with -Dclock_gettime=moved_clock. */
#include "device.h"
#include "ring.h"
#include "samples.h"

#define EXPORT __attribute__((visibility("default")))

Ring ring = {.ticks_per_ms = 1000000}; /* a tick is a nanosecond */
static Driver driver;
static Samples samples;
static int64_t now;

const Driver *device_driver(void) { return &driver; }

int moved_clock(clockid_t which, struct timespec *time) {
    (void)which;
    *time = (struct timespec){now / 1000000000, now % 1000000000};
    return 0;
}

/* Begin anew at this time, ns, with a share of one in so many. */
EXPORT void begin(int64_t at, uint64_t apart) {
    samples = (Samples){0};
    driver.apart = apart;
    now = at;
}

EXPORT void pause_for(int64_t ns) { now += ns; }

/* A candidate each so many ns, for some time; a sample takes so long. The time that all samples took, ns. */
EXPORT int64_t sample_for(int64_t ns, int64_t each, int64_t takes) {
    int64_t until = now + ns, spent = 0;
    for (; now < until; now += each) {
        int64_t since = now;
        if (!samples_choose(&samples, (uint64_t)since, 0)) continue;
        samples_count(0);
        now += takes;
        spent += takes;
        samples_spend(&samples, (uint64_t)since);
    }
    return spent;
}
