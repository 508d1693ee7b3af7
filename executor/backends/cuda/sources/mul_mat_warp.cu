// For short rows: a warp computes one group of rows at a time and loops over the groups. x is in shared memory as
// VALUES / 4 planes of float4, so that a warp reads it without bank conflicts.

#include "mul_mat.cuh"

// 16-byte loads in flight per lane. There are few pairs, so a whole small matrix of them is in flight at once.
template <int SHAPE>
constexpr int BATCH = SHAPE == PAIR ? 16 : 8;

template <class Weight, int SHAPE>
__device__ __forceinline__ void load_one(Weight& w, const Arguments& a, int group, int row, int chunk, int chunks) {
    if (chunk < chunks)
        w.load(SHAPE == GATED && row ? a.weight2 : a.weight,
               i64(SHAPE == PAIR ? 2 * group + row : group) * a.inputs + chunk * Weight::VALUES, i64(a.outputs) * a.inputs);
}

// The first weights of the norm: they are constant, so they may be loaded before the wait.
#define NORMS 2
template <bool NORM>
__device__ __forceinline__ void load_norms(float4 (&norms)[NORMS], const Arguments& a) {
#pragma unroll
    for (int u = 0; u < (NORM ? NORMS : 0); u++) {
        const int i = threadIdx.x + u * blockDim.x;
        if (i < a.inputs / 4) norms[u] = reinterpret_cast<const float4*>(a.norm)[i];
    }
}

// Loads x into shared memory, times the norm's weights if any; returns the remaining factor of rms_norm.
template <class Weight, bool NORM>
__device__ __forceinline__ float stage_x(
    float4* planes, const float4 (&norms)[NORMS], const Arguments& a, int token, int chunks) {
    __shared__ float scratch[WARP];
    constexpr int unroll = NORM ? NORMS : 4, count = Weight::VALUES / 4;
    const float4* x = reinterpret_cast<const float4*>(a.x + i64(token) * a.inputs);
    const float4* norm = reinterpret_cast<const float4*>(a.norm);
    float squares = 0.f;
    for (int first = threadIdx.x; first < a.inputs / 4; first += unroll * blockDim.x) {
        float4 v[unroll];
#pragma unroll
        for (int u = 0; u < unroll; u++)
            if (first + u * blockDim.x < a.inputs / 4) v[u] = x[first + u * blockDim.x];
#pragma unroll
        for (int u = 0; u < unroll; u++) {
            const int i = first + u * blockDim.x;
            if (NORM && i < a.inputs / 4) {
                const float4 n = first == threadIdx.x ? norms[u % NORMS] : norm[i];
                squares += v[u].x * v[u].x + v[u].y * v[u].y + v[u].z * v[u].z + v[u].w * v[u].w;
                v[u] = make_float4(v[u].x * n.x, v[u].y * n.y, v[u].z * n.z, v[u].w * n.w);
            }
            if (i < a.inputs / 4) planes[i % count * chunks + i / count] = v[u];
        }
    }
    if (NORM) return rsqrtf(block_sum(squares, scratch) / a.inputs + a.eps);
    __syncthreads();
    return 1.f;
}

template <class Weight, int SHAPE, bool NORM, class Epilogue>
__device__ __forceinline__ void mul_mat(const Arguments& a) {
    extern __shared__ float4 planes[];
    constexpr int batch = BATCH<SHAPE>, rows = SHAPE == SINGLE ? 1 : 2, step = batch / rows * WARP;
    const int chunks = a.inputs / Weight::VALUES, lane = threadIdx.x % WARP, token = blockIdx.y;
    const int groups = SHAPE == PAIR ? a.outputs / 2 : a.outputs, warps = gridDim.x * (blockDim.x / WARP);
    int group = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;

    Weight w[batch];
    float4 norms[NORMS];
    load_norms<NORM>(norms, a);
    if (group < groups) {  // weights are constant, so this may precede the wait
#pragma unroll
        for (int i = 0; i < batch; i++) load_one<Weight, SHAPE>(w[i], a, group, i % rows, lane + i / rows * WARP, chunks);
    }
    let_successor_start();
    wait_for_predecessor();
    Epilogue epilogue;
    if (group < groups) epilogue.prepare(a, token, SHAPE == PAIR ? 2 * group : group);
    const float factor = stage_x<Weight, NORM>(planes, norms, a, token, chunks);

    for (; group < groups; group += warps) {
        float sums[2] = {0.f, 0.f};
        for (int base = 0; base < chunks; base += step) {
            const bool same = base + step < chunks;  // the next batch belongs to the same rows
            const int next_group = same ? group : group + warps, next_base = same ? base + step : 0;
#pragma unroll
            for (int i = 0; i < batch; i += rows) {
                const int chunk = lane + i / rows * WARP;
                if (base + chunk < chunks) {
                    float x[Weight::VALUES];
#pragma unroll
                    for (int p = 0; p < Weight::VALUES / 4; p++) {
                        const float4 v = planes[p * chunks + base + chunk];
                        x[4 * p] = v.x, x[4 * p + 1] = v.y, x[4 * p + 2] = v.z, x[4 * p + 3] = v.w;
                    }
#pragma unroll
                    for (int r = 0; r < rows; r++) sums[r] += w[i + r].dot(x);
                }
                if (next_group < groups) {
#pragma unroll
                    for (int r = 0; r < rows; r++)
                        load_one<Weight, SHAPE>(w[i + r], a, next_group, r, next_base + chunk, chunks);
                }
            }
        }
        const float y = warp_sum(sums[0]), y2 = rows == 2 ? warp_sum(sums[1]) : 0.f;
        const int next = group + warps, row = SHAPE == PAIR ? 2 * group : group;
        if (lane == 0) epilogue.write(a, token, row, make_float2(y * factor, y2 * factor));
        if (next < groups) epilogue.prepare(a, token, SHAPE == PAIR ? 2 * next : next);
    }
}

#define KERNEL(name, weight, shape, norm, ...) \
    extern "C" __global__ void __launch_bounds__(256, shape == PAIR ? 2 : 3) name(const __grid_constant__ Arguments a) { \
        mul_mat<weight, shape, norm, __VA_ARGS__>(a); \
    }

KERNELS(f32, F32, float)
KERNELS(f16, F16, f16)
KERNELS(q8_0, Q8_0, f16)
