// Stamps head and tail of every step by the GPU's clock: row `step % steps` of history (steps, 2), ns of %globaltimer.

#include "common.cuh"

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
extern "C" __global__ void stamp_head(u64* history, const u64* step, u64 steps) {
    const u64 t = now();
    history[*step % steps * 2] = t;
}
extern "C" __global__ void stamp_tail(u64* history, u64* step, u64 steps) {
    const u64 t = now();
    history[*step % steps * 2 + 1] = t;
    ++*step;
}
