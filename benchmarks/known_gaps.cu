/* Decode loops whose gaps are known: the first and the last kernel of each step write the device's clock.
 *
 * nvcc -O2 -std=c++17 -arch=native -o known_gaps known_gaps.cu -lcuda
 * known_gaps MODE STEPS prints a line of JSON per loop: its gap (p50, mean), its period and its rate.
 */
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t error_ = (call);                                                    \
        if (error_ != cudaSuccess) {                                                    \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));             \
            exit(3);                                                                    \
        }                                                                               \
    } while (0)
#define CHECK_DRIVER(call)                                                              \
    do {                                                                                \
        CUresult error_ = (call);                                                       \
        if (error_ != CUDA_SUCCESS) {                                                   \
            fprintf(stderr, "%s: %d\n", #call, (int)error_);                            \
            exit(3);                                                                    \
        }                                                                               \
    } while (0)

typedef unsigned long long Time;
enum { FIRST = 1, LAST = 2, WARM_UP = 20 };

struct Stamps { /* on the device: begin and end of each step, and how many have ended */
    Time *begin, *end;
    unsigned *step;
};

__device__ Time now() {
    Time time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

__global__ void work(Time ns, Stamps stamps, int which, int *token) {
    Time from = now();
    if (which & FIRST) stamps.begin[*stamps.step] = from;
    while (now() - from < ns) {
    }
    if (which & LAST) {
        ++*token;
        stamps.end[*stamps.step] = now();
        ++*stamps.step;
    }
}

static void host_work(int us) {
    auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
    while (std::chrono::steady_clock::now() < until) {
    }
}

struct Loop {
    int device = 0, steps = 0, host_us = 40, kernels = 30, kernel_ns = 20000;
    cudaStream_t stream = nullptr, beside[3] = {};
    cudaEvent_t forked = nullptr, joined[3] = {}, fetched[2] = {};
    Stamps stamps = {};
    int *token = nullptr, *host = nullptr;
    cudaGraphExec_t graph = nullptr;
    double seconds = 0;

    void start(int on, int count, bool with_graph, cudaStream_t given = nullptr) {
        device = on, steps = count;
        CHECK(cudaSetDevice(device));
        if (given) stream = given;
        else CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (auto &each : beside) CHECK(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
        for (auto &each : joined) CHECK(cudaEventCreateWithFlags(&each, cudaEventDisableTiming));
        for (auto &each : fetched) CHECK(cudaEventCreateWithFlags(&each, cudaEventDisableTiming));
        size_t bytes = sizeof(Time) * (steps + WARM_UP);
        CHECK(cudaMalloc(&stamps.begin, bytes));
        CHECK(cudaMalloc(&stamps.end, bytes));
        CHECK(cudaMalloc(&stamps.step, sizeof(unsigned)));
        CHECK(cudaMalloc(&token, sizeof(int)));
        CHECK(cudaMallocHost(&host, 2 * sizeof(int)));
        CHECK(cudaMemset(stamps.step, 0, sizeof(unsigned)));
        CHECK(cudaMemset(token, 0, sizeof(int)));
        CHECK(cudaDeviceSynchronize());
        if (!with_graph) return;
        cudaGraph_t captured;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        launch();
        CHECK(cudaStreamEndCapture(stream, &captured));
        CHECK(cudaGraphInstantiate(&graph, captured, 0));
    }

    void launch() { /* the kernels of a step, one after the other */
        for (int k = 0; k < kernels; k++)
            work<<<1, 1, 0, stream>>>(kernel_ns, stamps, (k == 0 ? FIRST : 0) | (k == kernels - 1 ? LAST : 0), token);
    }

    void launch_beside() { /* the same on four streams */
        work<<<1, 1, 0, stream>>>(kernel_ns, stamps, FIRST, token);
        CHECK(cudaEventRecord(forked, stream));
        for (int i = 0; i < 3; i++) {
            CHECK(cudaStreamWaitEvent(beside[i], forked, 0));
            for (int k = 0; k < 7; k++) work<<<1, 1, 0, beside[i]>>>(kernel_ns, stamps, 0, token);
            CHECK(cudaEventRecord(joined[i], beside[i]));
        }
        for (int k = 0; k < 7; k++) work<<<1, 1, 0, stream>>>(kernel_ns, stamps, 0, token);
        for (auto &each : joined) CHECK(cudaStreamWaitEvent(stream, each, 0));
        work<<<1, 1, 0, stream>>>(kernel_ns, stamps, LAST, token);
    }

    void issue(bool is_beside = false) { /* one step, without waiting for it */
        CHECK(cudaMemcpyAsync(token, host, sizeof(int), cudaMemcpyHostToDevice, stream));
        if (is_beside) launch_beside();
        else if (graph) CHECK(cudaGraphLaunch(graph, stream));
        else launch();
        CHECK(cudaMemcpyAsync(host, token, sizeof(int), cudaMemcpyDeviceToHost, stream));
    }

    template <typename Step> void run(Step step) { /* step(i) does all of a step */
        CHECK(cudaSetDevice(device));
        std::chrono::steady_clock::time_point begin;
        for (int i = 0; i < steps + WARM_UP; i++) {
            if (i == WARM_UP) begin = std::chrono::steady_clock::now();
            step(i);
        }
        CHECK(cudaStreamSynchronize(stream));
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

    void tell(const char *mode) {
        std::vector<Time> begin(steps + WARM_UP), end(steps + WARM_UP);
        CHECK(cudaSetDevice(device));
        CHECK(cudaMemcpy(begin.data(), stamps.begin, sizeof(Time) * begin.size(), cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(end.data(), stamps.end, sizeof(Time) * end.size(), cudaMemcpyDeviceToHost));
        std::vector<double> gaps, periods;
        double sum = 0;
        for (size_t i = WARM_UP; i + 1 < begin.size(); i++) {
            gaps.push_back(((double)begin[i + 1] - (double)end[i]) / 1e3);
            periods.push_back((double)(begin[i + 1] - begin[i]) / 1e3);
            sum += gaps.back();
        }
        std::sort(gaps.begin(), gaps.end());
        std::sort(periods.begin(), periods.end());
        printf("TRUTH {\"mode\": \"%s\", \"device\": %d, \"steps\": %d, \"gap_p50\": %.2f, \"gap_mean\": %.2f, "
               "\"period_p50\": %.2f, \"steps_per_s\": %.1f}\n",
               mode, device, steps, gaps[gaps.size() / 2], sum / gaps.size(), periods[periods.size() / 2], steps / seconds);
        fflush(stdout);
    }

    void wait() { CHECK(cudaStreamSynchronize(stream)); }
};

/* Hands a number from one thread to another. */
struct Baton {
    std::mutex mutex;
    std::condition_variable changed;
    int value = 0;
    void set(int to) {
        std::lock_guard<std::mutex> lock(mutex);
        value = to;
        changed.notify_all();
    }
    void wait(int least) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return value >= least; });
    }
};

static cudaStream_t green_stream() { /* of a green context with half of the multiprocessors */
    CUdevice device;
    CUdevResource all, half;
    CUdevResourceDesc described;
    CUgreenCtx context;
    CUstream stream;
    unsigned groups = 1;
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(nullptr));
    CHECK_DRIVER(cuDeviceGet(&device, 0));
    CHECK_DRIVER(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    CHECK_DRIVER(cuDevSmResourceSplitByCount(&half, &groups, &all, nullptr, 0, all.sm.smCount / 2));
    CHECK_DRIVER(cuDevResourceGenerateDesc(&described, &half, 1));
    CHECK_DRIVER(cuGreenCtxCreate(&context, described, device, CU_GREEN_CTX_DEFAULT_STREAM));
    CHECK_DRIVER(cuGreenCtxStreamCreate(&stream, context, CU_STREAM_NON_BLOCKING, 0));
    return (cudaStream_t)stream;
}

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "usage: known_gaps MODE STEPS\n"), 2;
    std::string mode = arguments[1];
    int steps = atoi(arguments[2]);
    auto plain = [](Loop &loop) {
        loop.run([&](int) { host_work(loop.host_us), loop.issue(), loop.wait(); });
    };
    if (mode == "two" || mode == "devices") { /* two loops in two threads, on one device or on two */
        Loop loops[2];
        loops[1].host_us = 90;
        for (int i = 0; i < 2; i++) loops[i].start(mode == "two" ? 0 : i, steps, true);
        std::thread other([&] { plain(loops[1]); });
        plain(loops[0]);
        other.join();
        for (auto &loop : loops) loop.tell(mode.c_str());
        return 0;
    }
    Loop loop;
    if (mode == "eager300") loop.kernels = 300, loop.kernel_ns = 4000;
    if (mode == "eager300host") loop.kernels = 300, loop.kernel_ns = 500;
    bool is_eager = mode.rfind("eager", 0) == 0 || mode == "streams";
    loop.start(0, steps, !is_eager, mode == "green" ? green_stream() : nullptr);
    if (mode == "plain" || mode == "green" || mode.rfind("eager", 0) == 0) plain(loop);
    else if (mode == "streams") loop.run([&](int) { host_work(loop.host_us), loop.issue(true), loop.wait(); });
    else if (mode == "late") loop.run([&](int i) { /* the host waits for the step before */
        host_work(loop.host_us), loop.issue();
        CHECK(cudaEventRecord(loop.fetched[i & 1], loop.stream));
        if (i) CHECK(cudaEventSynchronize(loop.fetched[(i + 1) & 1]));
    });
    else if (mode == "never") loop.run([&](int i) { /* no wait but the last; the host is not far ahead */
        host_work(700), loop.issue();
    });
    else if (mode == "pool") { /* each step by the next of four threads */
        Baton turn;
        std::vector<std::thread> threads;
        std::chrono::steady_clock::time_point begin;
        for (int t = 0; t < 4; t++) threads.emplace_back([&, t] {
            CHECK(cudaSetDevice(0));
            for (int i = t; i < steps + WARM_UP; i += 4) {
                turn.wait(i);
                if (i == WARM_UP) begin = std::chrono::steady_clock::now();
                host_work(loop.host_us), loop.issue(), loop.wait();
                turn.set(i + 1);
            }
        });
        for (auto &thread : threads) thread.join();
        loop.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    } else if (mode == "handover") { /* one thread launches, another waits */
        Baton issued, done;
        std::thread launcher([&] {
            CHECK(cudaSetDevice(0));
            for (int i = 0; i < steps + WARM_UP; i++) {
                done.wait(i);
                host_work(loop.host_us), loop.issue();
                CHECK(cudaEventRecord(loop.fetched[i & 1], loop.stream));
                issued.set(i + 1);
            }
        });
        loop.run([&](int i) {
            issued.wait(i + 1);
            CHECK(cudaEventSynchronize(loop.fetched[i & 1]));
            done.set(i + 1);
        });
        launcher.join();
    } else
        return fprintf(stderr, "unknown mode %s\n", mode.c_str()), 2;
    loop.tell(mode.c_str());
    return 0;
}
