// A loop of CUDA graphs that waits for the device in one of several ways, for benchmarks/light_clock_error.py.
// Usage: light_clock_error MODE SECONDS WITNESSES. With WITNESSES 1 a thread reads the device's clock, by a kernel and memory of
// its own, every 50 ms: lines "WITNESS before after device" in ns, CLOCK_MONOTONIC and %globaltimer. Last a line "RATE steps/s".
#include <cuda_runtime.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

typedef unsigned long long u64;
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", #x, __LINE__, cudaGetErrorString(e_)); exit(3); } } while (0)
enum { QUESTIONS = 32, KERNELS = 10, KERNEL_NS = 40000, HOST_US = 100 };

static u64 now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void busy(double us) { for (u64 until = now() + (u64)(us * 1e3); now() < until;) continue; }
__device__ static u64 device_time() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
__global__ void spin(u64 ns, volatile int *done) {
  for (u64 begun = device_time(); device_time() - begun < ns;) continue;
  if (done && !blockIdx.x && !threadIdx.x) { *done = *done + 1; __threadfence_system(); }
}
__global__ void replies(volatile u64 *asked, volatile u64 *told, u64 patience) {
  for (u64 question = 1, begun = device_time(); question <= QUESTIONS; question++) {
    while (*asked < question) if (device_time() - begun > patience) return;
    told[0] = device_time(); __threadfence_system(); told[16] = question; __threadfence_system();
  }
}

static std::atomic<bool> is_over{false};
static void watch() {
  volatile u64 *board; u64 *there; cudaStream_t own;
  CK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  CK(cudaHostAlloc((void **)&board, 4096, cudaHostAllocMapped));
  CK(cudaHostGetDevicePointer((void **)&there, (void *)board, 0));
  while (!is_over) {
    board[0] = 0, board[64] = 0, board[80] = 0;
    replies<<<1, 1, 0, own>>>(there, there + 64, 2000000);
    u64 best = ~0ull, before = 0, after = 0, device = 0;
    for (u64 question = 1; question <= QUESTIONS; question++) {
      u64 t0 = now(); board[0] = question; std::atomic_thread_fence(std::memory_order_seq_cst);
      while (board[80] < question && now() - t0 < 5000000) continue;
      u64 t1 = now();
      if (board[80] < question) break;
      if (question > 1 && t1 - t0 < best) best = t1 - t0, before = t0, after = t1, device = board[64];
    }
    if (after) printf("WITNESS %llu %llu %llu\n", before, after, device);
    usleep(50000);
  }
}

int main(int argc, char **argv) {
  std::string mode = argv[1]; double seconds = atof(argv[2]); int is_watched = atoi(argv[3]), sms, steps = 0;
  CK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  cudaStream_t s, other; CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); CK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  volatile int *done; int *there; CK(cudaHostAlloc((void **)&done, 4, cudaHostAllocMapped)); *done = 0; CK(cudaHostGetDevicePointer((void **)&there, (void *)done, 0));
  bool is_full = mode == "full";
  cudaGraph_t g; cudaGraphExec_t x; CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < KERNELS; i++) spin<<<is_full ? sms * 2 : 1, is_full ? 1024 : 32, 0, s>>>(is_full ? 10 * KERNEL_NS : KERNEL_NS, i == KERNELS - 1 ? there : nullptr);
  CK(cudaStreamEndCapture(s, &g)); CK(cudaGraphInstantiate(&x, g, 0));
  cudaEvent_t e; CK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  static std::atomic<int> called{0};
  std::thread witness; if (is_watched) witness = std::thread(watch);
  u64 begun = now();
  for (u64 until = begun + (u64)(seconds * 1e9); now() < until; steps++) {
    busy(HOST_US);
    CK(cudaGraphLaunch(x, s));
    if (mode == "each" || is_full) CK(cudaStreamSynchronize(s));
    else if (mode == "rarely") { if (steps % 1000 == 999) CK(cudaStreamSynchronize(s)); else while (*done < steps - 1) continue; }
    else if (mode == "late") { busy(2000); CK(cudaStreamSynchronize(s)); }
    else if (mode == "polls") { CK(cudaEventRecord(e, s)); while (cudaEventQuery(e) == cudaErrorNotReady) usleep(100); }
    else if (mode == "function") { CK(cudaLaunchHostFunc(s, [](void *) { called++; }, nullptr)); while (called <= steps) continue; }
    else if (mode == "other") { CK(cudaEventRecord(e, s)); CK(cudaStreamWaitEvent(other, e, 0)); CK(cudaStreamSynchronize(other)); }
    else if (mode == "never") while (*done < steps - 1) continue;
  }
  while (*done < steps) continue;
  double took = (now() - begun) / 1e9;
  is_over = true; if (is_watched) witness.join();
  printf("RATE %.3f\n", steps / took);
}
