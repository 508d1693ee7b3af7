/* Runs of eager launches: a head before the first, a tail behind the last before somebody waits or fetches. */
#include "device.h"
#include "interpose.h"
#include "stamps.h"

typedef struct {
    Stream stream;
    uint32_t number; /* 0: none */
    uint32_t turn;   /* of recording; what was paused in between is over */
    uint8_t device;
} Run;

enum { RUNS = 8 };

static _Atomic uint32_t given;
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
    uint8_t next, open;
    Run runs[RUNS];
} mine;

int stamps_runs_now(Stream stream) {
    int status = CAPTURE_NONE;
    const Driver *driver = device_driver();
    return driver->cuStreamIsCapturing && !driver->cuStreamIsCapturing(stream, &status) && status == CAPTURE_NONE;
}

static int put(Device *device, Stream stream, uint32_t number, int kind) {
    Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **,
                     void **) = real_call(CALL_cuLaunchKernel);
    Arguments a;
    KernelNode k = device_stamp(device, (uint64_t)number << 16 | (unsigned)kind, &a);
    if (launch && launch(k.function, 1, 1, 1, 1, 1, 1, 0, stream, k.parameters, NULL) == SUCCESS) return 1;
    ring_count(COUNT_stamps_failed, 1);
    return 0;
}

static void end_run(Run *run) {
    Device *device = &devices[run->device];
    if (device_context() == run->device && device->stamp && run->turn == ring_turn() && stamps_runs_now(run->stream))
        put(device, run->stream, run->number, TAIL);
    run->number = 0;
    mine.open--;
}

uint32_t stamps_run(Stream stream, int own) {
    Stream on = stamps_stream(stream, own);
    for (Run *run = mine.runs; mine.open && run < mine.runs + RUNS; run++) {
        if (run->number && run->turn != ring_turn()) end_run(run);
        if (run->number && run->stream == on) return run->number;
    }
    Device *device;
    if (!device_driver()->stamps_runs || !stamps_runs_now(on) || !(device = device_with_stamps())) return 0;
    uint32_t number = atomic_fetch_add(&given, 1u) % 0xffffffu + 1;
    if (!put(device, on, number, HEAD)) return 0;
    Run *run = mine.runs;
    while (run < mine.runs + RUNS && run->number) run++;
    if (run == mine.runs + RUNS) end_run(run = &mine.runs[mine.next++ % RUNS]);
    *run = (Run){on, number, ring_turn(), (uint8_t)(device - devices)};
    mine.open++;
    ring_count(COUNT_runs, 1);
    return number;
}

void stamps_end(Stream stream, int own) {
    Stream on = stamps_stream(stream, own);
    for (Run *run = mine.runs; mine.open && run < mine.runs + RUNS; run++)
        if (run->number && run->stream == on) end_run(run);
}

void stamps_end_all(void) {
    for (Run *run = mine.runs; mine.open && run < mine.runs + RUNS; run++)
        if (run->number) end_run(run);
}

