// Products with f16 weights for 2 to 8 tokens, on tensor cores: the weights are read once for all tokens.
// W (O, I) by rows, I a multiple of 32; x (N, I) f32, rounded to f16; out (N, O), sums in f32.

#include "common.cuh"

#define WARPS 8
#define UNROLL 4
#define TILE 16
#define TOKENS 8

struct Arguments {
    const u8* weight;
    const float* x;
    float* out;
    int outputs, inputs, tokens;
};

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A block has 16 rows; its warps share the inputs, 32 at a time. Which of these 32 a register of an mma stands for does not
// matter as long as it is the same for weights and x: so a lane takes 8 neighbours of a row with one load.
extern "C" __global__ void __launch_bounds__(WARPS * WARP) mul_mat_tokens_f16(const __grid_constant__ Arguments a) {
    __shared__ float parts[WARPS][TILE][TOKENS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / 4, quarter = lane % 4;
    const int steps = a.inputs / 32, first_row = blockIdx.x * TILE + group;
    const i64 upper = i64(min(first_row, a.outputs - 1)) * a.inputs, lower = i64(min(first_row + 8, a.outputs - 1)) * a.inputs;
    const float* x = a.x + i64(min(group, a.tokens - 1)) * a.inputs;
    const bool used = group < a.tokens;
    F16 w[UNROLL][2];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const int step = warp * UNROLL + u;
        if (step < steps) {  // weights never change, so this may come before the wait
            w[u][0].load(a.weight, upper + step * 32 + quarter * 8, 0);
            w[u][1].load(a.weight, lower + step * 32 + quarter * 8, 0);
        }
    }
    let_successor_start();
    wait_for_predecessor();
    float sums[4] = {};
    for (int base = warp * UNROLL; base < steps; base += WARPS * UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int step = base + u, next = step + WARPS * UNROLL;
            if (step >= steps) break;
            const float4* from = reinterpret_cast<const float4*>(x + step * 32 + quarter * 8);
            const float4 p = from[0], q = from[1];
            const uint4 one = w[u][0].raw, two = w[u][1].raw;
            if (next < steps) {
                w[u][0].load(a.weight, upper + next * 32 + quarter * 8, 0);
                w[u][1].load(a.weight, lower + next * 32 + quarter * 8, 0);
            }
            mma(sums, one.x, two.x, one.y, two.y, used ? pack(p.x, p.y) : 0, used ? pack(p.z, p.w) : 0);
            mma(sums, one.z, two.z, one.w, two.w, used ? pack(q.x, q.y) : 0, used ? pack(q.z, q.w) : 0);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) parts[warp][group + i / 2 * 8][quarter * 2 + i % 2] = sums[i];
    __syncthreads();
    const int row = threadIdx.x / TOKENS, token = threadIdx.x % TOKENS, output = blockIdx.x * TILE + row;
    if (row < TILE && token < a.tokens && output < a.outputs) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += parts[i][row][token];
        a.out[i64(token) * a.outputs + output] = sum;
    }
}
