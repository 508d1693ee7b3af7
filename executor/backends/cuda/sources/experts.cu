// Mixture of experts with `chosen` experts per token; ids (N, chosen) i32.

#include "common.cuh"

#define WARPS 8
#define MOST_COLUMNS 1024

// exp(x) of each row, scaled to the sum 1; one block per row.
extern "C" __global__ void soft_max_f32(float* out, const float* x, int width) {
    __shared__ float scratch[WARP];
    let_successor_start();
    wait_for_predecessor();
    x += i64(blockIdx.x) * width;
    out += i64(blockIdx.x) * width;
    float greatest = MINUS_INFINITY, sum = 0.f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) greatest = fmaxf(greatest, x[i]);
    greatest = block_max(greatest, scratch);
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += expf(x[i] - greatest);
    sum = block_sum(sum, scratch);
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[i] = expf(x[i] - greatest) / sum;
}

// Columns of the k largest values of each row, in descending order; lower columns first among equals. One warp per row.
extern "C" __global__ void top_k_f32(int* out, const float* x, int width, int k) {
    __shared__ float left[MOST_COLUMNS];
    let_successor_start();
    wait_for_predecessor();
    x += i64(blockIdx.x) * width;
    for (int i = threadIdx.x; i < width; i += WARP) left[i] = x[i];
    __syncwarp();
    for (int rank = 0; rank < k; rank++) {
        float best = MINUS_INFINITY;
        int column = 0x7fffffff;
        for (int i = threadIdx.x; i < width; i += WARP)
            if (left[i] > best || (left[i] == best && i < column)) best = left[i], column = i;
        for (int offset = WARP / 2; offset; offset /= 2) {
            const float v = __shfl_xor_sync(FULL, best, offset);
            const int c = __shfl_xor_sync(FULL, column, offset);
            if (v > best || (v == best && c < column)) best = v, column = c;
        }
        if (threadIdx.x == 0) {
            out[i64(blockIdx.x) * k + rank] = column;
            left[column] = __int_as_float(0x7fc00000);  // NaN: never chosen again
        }
        __syncwarp();
    }
}

// out[n, c] = sum over j of weights[n, j] * x[n, j, c]; blockIdx.y is the token.
extern "C" __global__ void moe_expert_reduce_f32(float* out, const float* x, const float* weights, int chosen, int width) {
    let_successor_start();
    wait_for_predecessor();
    const int token = blockIdx.y;
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < width; c += gridDim.x * blockDim.x) {
        float sum = 0.f;
        for (int j = 0; j < chosen; j++) sum = fmaf(weights[token * chosen + j], x[(i64(token) * chosen + j) * width + c], sum);
        out[i64(token) * width + c] = sum;
    }
}

struct Experts {
    const u8* weight;   // (E, O, I) row-major
    const u8* weight2;  // the up matrices of swiglu, or null
    const float* x;     // (N, chosen, I), or (N, I) where all chosen experts share it
    const int* ids;
    float* out;         // (N, chosen, O)
    int experts, outputs, inputs, chosen, shared;
};

// Products with the matrices of the chosen experts. blockIdx.y is a token's choice; a warp computes a row at a time. x
// is in shared memory as VALUES / 4 planes of float4, as in mul_mat_warp.cu.
template <class Weight, bool GATED>
__device__ __forceinline__ void mul_mat_id(const Experts& a) {
    extern __shared__ float4 planes[];
    constexpr int count = Weight::VALUES / 4, batch = GATED ? 4 : 8;
    const int chunks = a.inputs / Weight::VALUES, lane = threadIdx.x % WARP, choice = blockIdx.y;
    const i64 size = i64(a.experts) * a.outputs * a.inputs;
    let_successor_start();
    wait_for_predecessor();
    const i64 first_row = i64(a.ids[choice]) * a.outputs;
    const float4* x = reinterpret_cast<const float4*>(a.x + i64(a.shared ? choice / a.chosen : choice) * a.inputs);
    for (int i = threadIdx.x; i < a.inputs / 4; i += blockDim.x) planes[i % count * chunks + i / count] = x[i];
    __syncthreads();
    for (int row = blockIdx.x * WARPS + threadIdx.x / WARP; row < a.outputs; row += gridDim.x * WARPS) {
        float sum = 0.f, sum2 = 0.f;
        for (int base = lane; base < chunks; base += batch * WARP) {
            Weight w[batch], w2[GATED ? batch : 1];
#pragma unroll
            for (int i = 0; i < batch; i++) {
                const int chunk = base + i * WARP;
                if (chunk < chunks) {
                    w[i].load(a.weight, (first_row + row) * a.inputs + chunk * Weight::VALUES, size);
                    if (GATED) w2[i % (GATED ? batch : 1)].load(a.weight2, (first_row + row) * a.inputs + chunk * Weight::VALUES, size);
                }
            }
#pragma unroll
            for (int i = 0; i < batch; i++) {
                const int chunk = base + i * WARP;
                if (chunk < chunks) {
                    float v[Weight::VALUES];
#pragma unroll
                    for (int p = 0; p < count; p++) {
                        const float4 q = planes[p * chunks + chunk];
                        v[4 * p] = q.x, v[4 * p + 1] = q.y, v[4 * p + 2] = q.z, v[4 * p + 3] = q.w;
                    }
                    sum += w[i].dot(v);
                    if (GATED) sum2 += w2[i % (GATED ? batch : 1)].dot(v);
                }
            }
        }
        sum = warp_sum(sum);
        if (GATED) sum2 = warp_sum(sum2);
        if (lane == 0) a.out[i64(choice) * a.outputs + row] = GATED ? sum / (1.f + expf(-sum)) * sum2 : sum;
    }
}

#define KERNEL(suffix, weight) \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP) mul_mat_id_##suffix(const __grid_constant__ Experts a) { \
        mul_mat_id<weight, false>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP) mul_mat_id_swiglu_##suffix(const __grid_constant__ Experts a) { \
        mul_mat_id<weight, true>(a); \
    }

KERNEL(f32, F32)
KERNEL(f16, F16)
KERNEL(q8_0, Q8_0)
