/* Runs of eager launches: a head before the first, a tail behind the last before somebody waits or fetches.
 *
 * A run that follows stamped work on its stream, with no wait of its thread in between, gets no head: the host is
 * ahead, and the run begins where that work ends.
 */
#include "device.h"
#include "interpose.h"
#include "stamps.h"

typedef struct {
    Stream stream;
    uint32_t number; /* of the open run; 0: none */
    uint32_t turn;   /* of recording; what was paused in between is over */
    uint32_t waits;  /* of the thread, when stamped work was last put on the stream; 0: none was */
    uint8_t device;
} Run;

enum { RUNS = 8 };

static _Atomic uint32_t given;
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
    uint8_t next, open;
    uint32_t waits; /* how often this thread waited, less one */
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
    int is_there = device_context() == run->device && device->stamp && run->turn == ring_turn();
    int is_put = is_there && stamps_runs_now(run->stream) && put(device, run->stream, run->number, TAIL);
    run->waits = is_put ? mine.waits + 1 : 0;
    run->number = 0;
    mine.open--;
}

/* The place of a stream among this thread's; another's, of which nothing is open any more, if it has none. */
static Run *place_of(Stream on) {
    for (Run *run = mine.runs; run < mine.runs + RUNS; run++)
        if (run->stream == on && (run->number || run->waits)) return run;
    Run *run = mine.runs;
    while (run < mine.runs + RUNS && run->number) run++;
    if (run == mine.runs + RUNS) end_run(run = &mine.runs[mine.next++ % RUNS]);
    *run = (Run){.stream = on, .turn = ring_turn()};
    return run;
}

uint32_t stamps_run(Stream stream, int own) {
    Stream on = stamps_stream(stream, own);
    for (Run *run = mine.runs; mine.open && run < mine.runs + RUNS; run++) {
        if (run->number && run->turn != ring_turn()) end_run(run);
        if (run->number && run->stream == on) return run->number;
    }
    Device *device;
    if (!device_driver()->stamps_runs || !stamps_runs_now(on) || !(device = device_with_stamps())) return 0;
    Run *run = place_of(on);
    uint8_t at = (uint8_t)(device - devices);
    int is_behind = run->waits == mine.waits + 1 && run->turn == ring_turn() && run->device == at;
    uint32_t number = atomic_fetch_add(&given, 1u) % 0xffffffu + 1;
    if (!is_behind && !put(device, on, number, HEAD)) return 0;
    *run = (Run){on, number, ring_turn(), 0, at};
    mine.open++;
    ring_count(COUNT_runs, 1);
    return number;
}

void stamps_graph(Stream stream, int own) {
    Stream on = stamps_stream(stream, own);
    Run *run = place_of(on);
    *run = (Run){on, 0, ring_turn(), mine.waits + 1, device_context()};
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

void stamps_wait(void) { mine.waits++; }
