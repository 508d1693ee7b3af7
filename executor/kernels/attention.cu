// Attention over the KV cache with grouped queries: one or several blocks of 512 threads per query head and token.
// q (N, heads, D) f32; k, v (streams, cells, KV heads, D), f32 or f16; mask (N, cells) f32, added to the scores; out (N, heads * D).
// D is 8, 16, ... 256: D / 8 lanes, a slot, read a cell, 8 values each. UNROLL cells per slot are in flight; the cells of
// all slots together are a chunk. Every slot keeps a softmax of its own over the cells it reads (greatest score, sum,
// weighted values). They are merged at the end: those of a warp, of a block, and where several blocks share the chunks
// of a token and head, by the block that is done last.

#include "common.cuh"

#define THREADS 512

struct Attention {
    const float* q;
    const void* k;
    const void* v;
    const float* mask;
    const int* streams;  // (G,) stream that each group of tokens sees, or null: group g sees stream g
    const u8* visible;   // (N, chunks) whether a token sees any cell of a chunk, see mask_chunks; null for all
    float* parts;        // (N, heads, splits, D + 2) what each block found: values, greatest score, sum
    u32* done;           // (N, heads) blocks that are done; 0 before and after
    float* out;
    int heads, kv_heads, head, cells, tokens, splits;
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

// Whether all other blocks of `count` have been here before this one; what they wrote is visible then.
__device__ __forceinline__ bool is_last(u32* done, int count) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(done, 1u) == count - 1;
        if (last) *done = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

// out (D,) from the parts (splits, D + 2) of the blocks.
__device__ __forceinline__ void merge(const volatile float* parts, float* out, int head, int splits) {
    const int width = head + 2;
    for (int d = threadIdx.x; d < head; d += THREADS) {
        float all = MINUS_INFINITY, below = 0.f, above = 0.f;
        for (int s = 0; s < splits; s++) all = fmaxf(all, parts[s * width + head]);
        for (int s = 0; s < splits; s++) {
            const float weight = weight_of(parts[s * width + head], all);
            below += weight * parts[s * width + head + 1];
            above += weight * parts[s * width + d];
        }
        out[d] = above / below;
    }
}

template <class Eight>
__device__ __forceinline__ void attend(const Attention& a) {
    constexpr int unroll = Eight::UNROLL, warps = THREADS / WARP;
    __shared__ float tops[warps], sums[warps], parts[warps][256];
    const int head = blockIdx.x % a.heads, split = blockIdx.x / a.heads, token = blockIdx.y, warp = threadIdx.x / WARP;
    const int lanes = a.head / 8, lane = threadIdx.x % lanes, slot = threadIdx.x / lanes, slots = THREADS / lanes;
    const int chunk_cells = slots * unroll, chunks = (a.cells + chunk_cells - 1) / chunk_cells;
    const int share = (chunks + a.splits - 1) / a.splits, begin = split * share, end = min(begin + share, chunks);
    const int group = token / a.tokens, stream = a.streams ? a.streams[group] : group;  // streams are no kernel's result
    const i64 stride = i64(a.kv_heads) * a.head;
    const i64 first = i64(stream) * a.cells * stride + head / (a.heads / a.kv_heads) * a.head + lane * 8;
    const float* mask = a.mask + i64(token) * a.cells;
    let_successor_start();
    for (int u = 0; u < unroll; u++) {
        const int cell = min(begin * chunk_cells + u * slots + slot, a.cells - 1);
        Eight::prefetch_at(a.k, first + cell * stride);
        Eight::prefetch_at(a.v, first + cell * stride);
    }
    wait_for_predecessor();

    float q[8], out[8] = {}, top = MINUS_INFINITY, sum = 0.f;
    EightF32 query;
    query.load(a.q, (i64(token) * a.heads + head) * a.head + lane * 8);
    query.get(q);
    u32 todo = 0;  // chunks left of the 32 from `near` on
    for (int near = begin - WARP, chunk; ; ) {
        while (!todo && (near += WARP) < end) {
            const int mine = near + threadIdx.x % WARP;
            todo = __ballot_sync(FULL, mine < end && (!a.visible || a.visible[i64(token) * chunks + mine]));
        }
        if (!todo) break;
        chunk = near + __ffs(todo) - 1;
        todo &= todo - 1;
        const int base = chunk * chunk_cells;
        Eight k[unroll], v[unroll];
        float score[unroll];
        bool any = false;
#pragma unroll
        for (int u = 0; u < unroll; u++) {
            const int cell = base + u * slots + slot;
            score[u] = cell < a.cells ? mask[cell] : MINUS_INFINITY;
            if (chunk != begin) any |= score[u] > MINUS_INFINITY;
        }
        if (chunk != begin && !__any_sync(FULL, any)) continue;  // only the first cells are read before their mask is known
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
    const i64 row = i64(token) * a.heads + head;
    const int width = a.head + 2;
    float* found = a.parts + row * a.splits * width;
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
        if (a.splits == 1) a.out[row * a.head + d] = above / below;
        else found[split * width + d] = above, found[split * width + a.head] = all, found[split * width + a.head + 1] = below;
    }
    if (a.splits > 1 && is_last(a.done + row, a.splits)) merge(found, a.out + row * a.head, a.head, a.splits);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) flash_attn_f32(const __grid_constant__ Attention a) { attend<EightF32>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) flash_attn_f16(const __grid_constant__ Attention a) { attend<EightF16>(a); }

// visible (N, chunks) from the mask (N, cells): one warp per chunk, so that attention skips all chunks of other sequences.
extern "C" __global__ void mask_chunks(u8* visible, const float* mask, int cells, int chunk_cells, int chunks) {
    const int chunk = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, token = blockIdx.y;
    let_successor_start();
    wait_for_predecessor();
    const int first = chunk * chunk_cells, last = min(first + chunk_cells, cells);
    bool any = false;
    for (int cell = first + threadIdx.x % WARP; cell < last; cell += WARP) any |= mask[i64(token) * cells + cell] > MINUS_INFINITY;
    any = __any_sync(FULL, any);
    if (threadIdx.x % WARP == 0 && chunk < chunks) visible[i64(token) * chunks + chunk] = any;
}
