// Grouped-query attention over the KV cache: a block computes HEADS query heads of one KV head for one token, and
// reads each cell once for all of them. q (N, heads, D) f32; k, v (streams, stride_cells, KV heads, D), f32 or f16, of
// which the first `cells` of a stream are attended; mask (N, cells) f32, added to the scores; out (N, heads * D).
// D is 8, 16, ... 256: D / 8 lanes, a slot, read a cell, 8 values each. A slot has UNROLL cells in flight; those of the
// slots of a warp are consecutive and form a strip. Every slot keeps its own softmax over the cells it reads. These are
// merged at the end: per warp, per block, and if several blocks split the cells of a token and head, by the last block
// to finish. Splits take turns at words of 32 cells, and the warps of a split at strips.
// A block with many cells to search first lists those that its token sees, so that cells of other sequences cost only
// their mask, and the warps have equal work wherever those cells are.

#include "common.cuh"

#define WORD 32                 // cells
#define ROUND (WARP * WORD)     // cells that a warp lists at a time

struct Attention {
    const float* q;
    const void* k;
    const void* v;
    const float* mask;
    const int* streams;  // (G,) stream that each group of tokens sees, or null: group g sees stream g
    float* parts;        // (N, heads, splits, D + 2) result of each block: values, largest score, sum
    u32* done;           // (N, blocks of a token and split) splits that are done; 0 before and after
    float* out;
    int heads, kv_heads, head, cells, stride_cells, tokens, splits, listed;
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

// A slot's softmax over the cells it has read, for each head: its weighted values, largest score, sum of weights.
template <int HEADS>
struct Softmax {
    float out[HEADS][8], top[HEADS], sum[HEADS];

    // Reads the cells whose K and V start at `at`, all loads first. `seen` is their mask, `lanes` the width of a slot.
    template <class Eight, int UNROLL>
    __device__ __forceinline__ void read(
        const Attention& a, const float (&q)[HEADS][8], const i64 (&at)[UNROLL], const float (&seen)[UNROLL], int lanes
    ) {
        Eight k[UNROLL], v[UNROLL];
        float score[HEADS][UNROLL], x[8];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) k[u].load(a.k, at[u]), v[u].load(a.v, at[u]);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            k[u].get(x);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                score[h][u] = 0.f;
#pragma unroll
                for (int i = 0; i < 8; i++) score[h][u] = fmaf(q[h][i], x[i], score[h][u]);
            }
        }
        for (int offset = lanes / 2; offset; offset /= 2) {
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
#pragma unroll
                for (int u = 0; u < UNROLL; u++) score[h][u] += __shfl_xor_sync(FULL, score[h][u], offset);
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float greatest = top[h];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                score[h][u] = seen[u] + score[h][u] * a.scale;
                greatest = fmaxf(greatest, score[h][u]);
            }
            rescale(h, greatest);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) sum[h] += score[h][u] = weight_of(score[h][u], greatest);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            v[u].get(x);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
#pragma unroll
                for (int i = 0; i < 8; i++) out[h][i] = fmaf(score[h][u], x[i], out[h][i]);
            }
        }
    }

    // Merges the slots of the warp.
    __device__ __forceinline__ void merge_slots(int h, int lanes) {
        float greatest = top[h];
        for (int offset = WARP / 2; offset >= lanes; offset /= 2) greatest = fmaxf(greatest, __shfl_xor_sync(FULL, greatest, offset));
        rescale(h, greatest);
        for (int offset = WARP / 2; offset >= lanes; offset /= 2) {
            sum[h] += __shfl_xor_sync(FULL, sum[h], offset);
#pragma unroll
            for (int i = 0; i < 8; i++) out[h][i] += __shfl_xor_sync(FULL, out[h][i], offset);
        }
    }

    __device__ __forceinline__ void rescale(int h, float greatest) {
        const float factor = weight_of(top[h], greatest);
        top[h] = greatest, sum[h] *= factor;
#pragma unroll
        for (int i = 0; i < 8; i++) out[h][i] *= factor;
    }
};

// The cells of a split, numbered consecutively over the words of its turns.
__device__ __forceinline__ int cell_of(int i, int split, int splits) {
    return (u32(i) / WORD * splits + split) * WORD + u32(i) % WORD;
}

// Lists, of WARPS * ROUND cells of a split from `begin` on, those that a token sees, relative to `begin`, in order.
template <int WARPS>
__device__ __forceinline__ int list_seen(const Attention& a, const float* mask, int split, int begin, unsigned short* list) {
    __shared__ int counts[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, first = begin + warp * ROUND;
    u32 kept = 0;  // lane i keeps the bits of the warp's word i
#pragma unroll
    for (int i = 0; i < WARP; i++) {
        const int cell = cell_of(first + i * WORD + lane, split, a.splits);
        const u32 bits = __ballot_sync(FULL, cell < a.cells && mask[cell] > MINUS_INFINITY);
        if (lane == i) kept = bits;
    }
    int upto = __popc(kept);  // bits in the warp's words up to and including the lane's
    for (int offset = 1; offset < WARP; offset *= 2) {
        const int below = __shfl_up_sync(FULL, upto, offset);
        if (lane >= offset) upto += below;
    }
    if (lane == WARP - 1) counts[warp] = upto;
    __syncthreads();  // also: no thread reads the previous list any more
    int before = 0, all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w == warp) before = all;
        all += counts[w];
    }
    before += upto - __popc(kept);
    for (int i = 0; i < WARP; i++) {
        const u32 bits = __shfl_sync(FULL, kept, i);
        const int to = __shfl_sync(FULL, before, i) + __popc(bits & ((1u << lane) - 1));
        if (bits >> lane & 1) list[to] = warp * ROUND + i * WORD + lane;
    }
    __syncthreads();
    return all;
}

// Merges the results of the warps (values, largest score, sum) into out (D,), or if it is null into merged (D + 2,).
template <int WARPS>
__device__ __forceinline__ void merge_warps(
    const float (*values)[256], const float* tops, const float* sums, int head, float* out, float* merged
) {
    for (int d = threadIdx.x; d < head; d += WARPS * WARP) {
        float all = MINUS_INFINITY, below = 0.f, above = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) all = fmaxf(all, tops[w]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = weight_of(tops[w], all);
            below += weight * sums[w];
            above += weight * values[w][d];
        }
        if (out) out[d] = above / below;
        else merged[d] = above, merged[head] = all, merged[head + 1] = below;
    }
}

// Whether this block is the last of `count` to get here; if so, everything the others wrote is visible.
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

// Merges the parts (splits, D + 2) of the blocks into out (D,).
__device__ __forceinline__ void merge_splits(const volatile float* parts, float* out, int head, int splits) {
    const int width = head + 2;
    for (int d = threadIdx.x; d < head; d += blockDim.x) {
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

template <class Eight, int HEADS, int UNROLL, int THREADS>
__device__ __forceinline__ void attend(const Attention& a) {
    constexpr int warps = THREADS / WARP;
    __shared__ union { unsigned short list[warps * ROUND]; float values[warps][256]; } shared;
    __shared__ float tops[warps], sums[warps];
    const int group = a.heads / a.kv_heads, per_group = (group + HEADS - 1) / HEADS, blocks = a.kv_heads * per_group;
    const int split = blockIdx.x / blocks, block = blockIdx.x % blocks, kv_head = block / per_group, token = blockIdx.y;
    const int begin = block % per_group * HEADS, count = min(HEADS, group - begin);
    const i64 row = i64(token) * a.heads + kv_head * group + begin;  // row of the first head
    const int lanes = a.head / 8, lane = threadIdx.x % lanes, warp = threadIdx.x / WARP;
    const int slots = WARP / lanes, slot = threadIdx.x % WARP / lanes;  // per warp
    const int strip = slots * UNROLL, begin_of_warp = warp * strip;
    const int words = (a.cells + WORD - 1) / WORD, part = (words + a.splits - 1) / a.splits * WORD;
    const int sequence = token / a.tokens, stream = a.streams ? a.streams[sequence] : sequence;  // no kernel writes `streams`
    const i64 stride = i64(a.kv_heads) * a.head, first = i64(stream) * a.stride_cells * stride + kv_head * a.head + lane * 8;
    const float* mask = a.mask + i64(token) * a.cells;
    let_successor_start();
    for (int u = 0; u < UNROLL; u++) {
        const int cell = min(cell_of(begin_of_warp + u * slots + slot, split, a.splits), a.cells - 1);
        Eight::prefetch_at(a.k, first + cell * stride);
        Eight::prefetch_at(a.v, first + cell * stride);
    }
    wait_for_predecessor();

    float q[HEADS][8];
    Softmax<HEADS> softmax;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        EightF32 query;
        query.load(a.q, (row + min(h, count - 1)) * a.head + lane * 8);
        query.get(q[h]);
        softmax.top[h] = MINUS_INFINITY, softmax.sum[h] = 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) softmax.out[h][i] = 0.f;
    }
    for (int base = 0; base < part; base += a.listed ? warps * ROUND : part) {
        const int cells = a.listed ? list_seen<warps>(a, mask, split, base, shared.list) : part;
        for (int i = begin_of_warp; i < cells; i += warps * strip) {
            i64 at[UNROLL];
            float seen[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const int own = i + u * slots + slot, near = min(own, cells - 1);
                const int cell = cell_of(a.listed ? base + shared.list[near] : near, split, a.splits);
                seen[u] = own < cells && cell < a.cells ? mask[cell] : MINUS_INFINITY;
                at[u] = first + min(cell, a.cells - 1) * stride;
            }
            if (!a.listed && i != begin_of_warp) {  // listed cells are seen; the first ones are read before their mask is known
                bool any = false;
#pragma unroll
                for (int u = 0; u < UNROLL; u++) any |= seen[u] > MINUS_INFINITY;
                if (!__any_sync(FULL, any)) continue;
            }
            softmax.template read<Eight>(a, q, at, seen, lanes);
        }
    }

    const int width = a.head + 2;
    float *out = a.out + row * a.head, *parts = a.parts + row * a.splits * width;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= count) break;
        softmax.merge_slots(h, lanes);
        __syncthreads();  // no thread reads the list or the previous head any more
        if (threadIdx.x % WARP < lanes) {
#pragma unroll
            for (int i = 0; i < 8; i++) shared.values[warp][lane * 8 + i] = softmax.out[h][i];
        }
        if (threadIdx.x % WARP == 0) tops[warp] = softmax.top[h], sums[warp] = softmax.sum[h];
        __syncthreads();
        float* merged = parts + (h * a.splits + split) * width;
        merge_warps<warps>(shared.values, tops, sums, a.head, a.splits == 1 ? out + h * a.head : nullptr, merged);
    }
    if (a.splits == 1 || !is_last(a.done + i64(token) * blocks + block, a.splits)) return;
    for (int h = 0; h < count; h++) merge_splits(parts + h * a.splits * width, out + h * a.head, a.head, a.splits);
}

#define VARIANT(name, Eight, heads, unroll, threads)                                                            \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Attention a) {        \
        attend<Eight, heads, unroll, threads>(a);                                                               \
    }
#define VARIANTS(type, Eight) \
    VARIANT(flash_attn_##type##_1, Eight, 1, Eight::UNROLL, 512) \
    VARIANT(flash_attn_##type##_2, Eight, 2, Eight::UNROLL / 2, 512) \
    VARIANT(flash_attn_##type##_4, Eight, 4, Eight::UNROLL, 256) \
    VARIANT(flash_attn_##type##_8, Eight, 8, Eight::UNROLL / 2, 256)
VARIANTS(f32, EightF32)
VARIANTS(f16, EightF16)
