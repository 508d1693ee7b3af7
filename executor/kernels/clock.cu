// Answers clock queries of the host: for question i in host memory, writes %globaltimer to answers[i - 1].
// Host memory is pinned and mapped, so both sides poll it directly. The kernel ends 100 ms after the last question.

#include "common.cuh"

extern "C" __global__ void answer_time(volatile u32* question, volatile u64* answers, u32 count) {
    u64 t, since;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(since));
    for (u32 i = 1; i <= count; ++i) {
        do {
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
        } while (*question < i && t - since < 100000000ull);
        if (*question < i) return;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
        answers[i - 1] = t;
        __threadfence_system();
        since = t;
    }
}
