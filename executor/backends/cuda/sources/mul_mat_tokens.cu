// Products with f16 weights for 2 to 8 tokens, on tensor cores: the weights are read once for all tokens.
// W (O, I) row-major, I a multiple of 8; x (N, I) f32, split into the sum of two f16 to keep 22 of its 24 bits;
// out (N, O), sums in f32.

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

// Two values as f16, and their remainders as f16.
struct Halves {
    u32 high, low;
};
__device__ __forceinline__ u32 pack(float first, float second) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}
__device__ __forceinline__ Halves halves(float first, float second) {
    const u32 high = pack(first, second);
    return {high, pack(first - to_float(f16(high)), second - to_float(f16(high >> 16)))};
}
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, Halves b0, Halves b1) {
    mma(d, a0, a1, a2, a3, b0.high, b1.high);
    mma(d, a0, a1, a2, a3, b0.low, b1.low);
}

// A block has 16 rows; its warps share the inputs, 4 x 32 at a time. The assignment of 32 inputs to the registers of an mma
// is free as long as it is the same for weights and x, so a lane takes 8 adjacent values of a row with one load. All loads
// of x for one round precede those of weights for the next: loads complete in order, so later ones would wait for memory.
extern "C" __global__ void __launch_bounds__(WARPS * WARP) mul_mat_tokens_f16(const __grid_constant__ Arguments a) {
    __shared__ float parts[WARPS][TILE][TOKENS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / 4, quarter = lane % 4;
    const int first_row = blockIdx.x * TILE + group, round = WARPS * UNROLL * 32;
    const i64 upper = i64(min(first_row, a.outputs - 1)) * a.inputs, lower = i64(min(first_row + 8, a.outputs - 1)) * a.inputs;
    const float* x = a.x + i64(min(group, a.tokens - 1)) * a.inputs;
    const int first = warp * UNROLL * 32 + quarter * 8, last = a.inputs - 8;
    F16 w[UNROLL][2];
    auto load_weights = [&](int u, int column) {  // past the row any value will do, as x is 0 there
        w[u][0].load(a.weight, upper + min(column, last), 0);
        w[u][1].load(a.weight, lower + min(column, last), 0);
    };
#pragma unroll
    for (int u = 0; u < UNROLL; u++) load_weights(u, first + u * 32);  // constant, so even before the wait
    let_successor_start();
    wait_for_predecessor();
    float sums[4] = {};
    for (int column = first; column - quarter * 8 < a.inputs; column += round) {  // the same for all lanes of a warp
        float4 from[UNROLL][2];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const float4* values = reinterpret_cast<const float4*>(x + min(column + u * 32, last));
            const bool used = group < a.tokens && column + u * 32 <= last;
            from[u][0] = used ? values[0] : make_float4(0, 0, 0, 0);
            from[u][1] = used ? values[1] : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint4 one = w[u][0].raw, two = w[u][1].raw;
            if (column + round <= last) load_weights(u, column + round + u * 32);
            const float4 p = from[u][0], q = from[u][1];
            mma(sums, one.x, two.x, one.y, two.y, halves(p.x, p.y), halves(p.z, p.w));
            mma(sums, one.z, two.z, one.w, two.w, halves(q.x, q.y), halves(q.z, q.w));
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
