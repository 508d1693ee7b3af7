// Decode attention over the KV cache with grouped queries: one block of 512 threads per query head and token.
// q (N, heads, D) f32; k, v (S, cells, KV heads, D), f32 or f16, N = S * tokens; mask (N, cells) f32, added to the scores; out (N, heads * D).
// D is 8, 16, ... 256: D / 8 lanes, a slot, read a cell, 8 values each. Every slot keeps a softmax of its own over the cells
// it reads (greatest score, sum, weighted values); they are merged at the end. UNROLL cells per slot are in flight.

#include "common.cuh"

#define THREADS 512

struct Attention {
    const float* q;
    const void* k;
    const void* v;
    const float* mask;
    float* out;
    int heads, kv_heads, head, cells, tokens;
    float scale;
};

struct EightF32 {
    static constexpr int UNROLL = 4;
    float4 a, b;
    __device__ __forceinline__ void load(const void* base, i64 at) {
        const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(base) + at);
        a = from[0], b = from[1];
    }
    __device__ static __forceinline__ void prefetch_at(const void* base, i64 at) { prefetch(static_cast<const float*>(base) + at); }
    __device__ __forceinline__ void get(float (&x)[8]) const {
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    }
};
struct EightF16 {
    static constexpr int UNROLL = 8;
    uint4 raw;
    __device__ __forceinline__ void load(const void* base, i64 at) {
        raw = *reinterpret_cast<const uint4*>(static_cast<const f16*>(base) + at);
    }
    __device__ static __forceinline__ void prefetch_at(const void* base, i64 at) { prefetch(static_cast<const f16*>(base) + at); }
    __device__ __forceinline__ void get(float (&x)[8]) const {
        const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) x[2 * i] = to_float(f16(words[i] & 0xffff)), x[2 * i + 1] = to_float(f16(words[i] >> 16));
    }
};

// exp(x - top) where either may be minus infinity.
__device__ __forceinline__ float weight_of(float x, float top) { return x == MINUS_INFINITY ? 0.f : expf(x - top); }

template <class Eight>
__device__ __forceinline__ void attend(const Attention& a) {
    constexpr int unroll = Eight::UNROLL, warps = THREADS / WARP;
    __shared__ float tops[warps], sums[warps], parts[warps][256];
    const int head = blockIdx.x, token = blockIdx.y, kv_head = head / (a.heads / a.kv_heads), warp = threadIdx.x / WARP;
    const int lanes = a.head / 8, lane = threadIdx.x % lanes, slot = threadIdx.x / lanes, slots = THREADS / lanes;
    const i64 stride = i64(a.kv_heads) * a.head, first = i64(token / a.tokens) * a.cells * stride + kv_head * a.head + lane * 8;
    const float* mask = a.mask + i64(token) * a.cells;
    let_successor_start();
    for (int u = 0; u < unroll; u++) {
        const int cell = min(u * slots + slot, a.cells - 1);
        Eight::prefetch_at(a.k, first + cell * stride);
        Eight::prefetch_at(a.v, first + cell * stride);
    }
    wait_for_predecessor();

    float q[8], out[8] = {}, top = MINUS_INFINITY, sum = 0.f;
    EightF32 query;
    query.load(a.q, (i64(token) * a.heads + head) * a.head + lane * 8);
    query.get(q);
    for (int base = 0; base < a.cells; base += slots * unroll) {
        Eight k[unroll], v[unroll];
        float score[unroll];
        bool any = false;
#pragma unroll
        for (int u = 0; u < unroll; u++) {
            const int cell = base + u * slots + slot;
            score[u] = cell < a.cells ? mask[cell] : MINUS_INFINITY;
            if (base) any |= score[u] > MINUS_INFINITY;
        }
        if (base && !__any_sync(FULL, any)) continue;  // only the first cells are read before their mask is known
#pragma unroll
        for (int u = 0; u < unroll; u++) {
            const int cell = min(base + u * slots + slot, a.cells - 1);
            k[u].load(a.k, first + cell * stride);
            v[u].load(a.v, first + cell * stride);
        }
        float greatest = top;
#pragma unroll
        for (int u = 0; u < unroll; u++) {
            float x[8], dot = 0.f;
            k[u].get(x);
#pragma unroll
            for (int i = 0; i < 8; i++) dot = fmaf(q[i], x[i], dot);
            for (int offset = lanes / 2; offset; offset /= 2) dot += __shfl_xor_sync(FULL, dot, offset);
            score[u] += dot * a.scale;
            greatest = fmaxf(greatest, score[u]);
        }
        const float rescale = weight_of(top, greatest);
        sum *= rescale;
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] *= rescale;
        top = greatest;
#pragma unroll
        for (int u = 0; u < unroll; u++) {
            float x[8];
            v[u].get(x);
            const float weight = weight_of(score[u], top);
            sum += weight;
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = fmaf(weight, x[i], out[i]);
        }
    }

    // the slots of a warp, then the warps
    float greatest = top;
    for (int offset = WARP / 2; offset >= lanes; offset /= 2) greatest = fmaxf(greatest, __shfl_xor_sync(FULL, greatest, offset));
    const float rescale = weight_of(top, greatest);
    sum *= rescale;
    for (int offset = WARP / 2; offset >= lanes; offset /= 2) sum += __shfl_xor_sync(FULL, sum, offset);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out[i] *= rescale;
        for (int offset = WARP / 2; offset >= lanes; offset /= 2) out[i] += __shfl_xor_sync(FULL, out[i], offset);
        if (threadIdx.x % WARP < lanes) parts[warp][lane * 8 + i] = out[i];
    }
    if (threadIdx.x % WARP == 0) tops[warp] = greatest, sums[warp] = sum;
    __syncthreads();
    for (int d = threadIdx.x; d < a.head; d += THREADS) {
        float all = MINUS_INFINITY, below = 0.f, above = 0.f;
#pragma unroll
        for (int w = 0; w < warps; w++) all = fmaxf(all, tops[w]);
#pragma unroll
        for (int w = 0; w < warps; w++) {
            const float weight = weight_of(tops[w], all);
            below += weight * sums[w];
            above += weight * parts[w][d];
        }
        a.out[(i64(token) * a.heads + head) * a.head + d] = above / below;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) flash_attn_f32(const __grid_constant__ Attention a) { attend<EightF32>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) flash_attn_f16(const __grid_constant__ Attention a) { attend<EightF16>(a); }
