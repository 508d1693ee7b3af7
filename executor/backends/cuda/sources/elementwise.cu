// The small ops, one thread per element unless stated otherwise. `n` elements; y is repeated every `period` elements.

#include "common.cuh"

#define EACH(i, n) \
    let_successor_start(); \
    wait_for_predecessor(); \
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)

extern "C" __global__ void add_f32(float* out, const float* x, const float* y, int n, int period) {
    EACH(i, n) out[i] = x[i] + y[i % period];
}
extern "C" __global__ void add_i32(int* out, const int* x, const int* y, int n, int period) {
    EACH(i, n) out[i] = x[i] + y[i % period];
}
extern "C" __global__ void add_i64(i64* out, const i64* x, const int* y, int n, int period) {
    EACH(i, n) out[i] = x[i] + y[i % period];
}
extern "C" __global__ void mul_f32(float* out, const float* x, const float* y, int n, int period) {
    EACH(i, n) out[i] = x[i] * y[i % period];
}
extern "C" __global__ void div_f32(float* out, const float* x, const float* y, int n, int period) {
    EACH(i, n) out[i] = x[i] / y[i % period];
}
// y has one value per row of `columns`
extern "C" __global__ void mul_column_f32(float* out, const float* x, const float* y, int n, int columns) {
    EACH(i, n) out[i] = x[i] * y[i / columns];
}
extern "C" __global__ void div_column_f32(float* out, const float* x, const float* y, int n, int columns) {
    EACH(i, n) out[i] = x[i] / y[i / columns];
}
extern "C" __global__ void silu_f32(float* out, const float* x, int n) {
    EACH(i, n) out[i] = x[i] / (1.f + expf(-x[i]));
}
extern "C" __global__ void sigmoid_f32(float* out, const float* x, int n) {
    EACH(i, n) out[i] = 1.f / (1.f + expf(-x[i]));
}
extern "C" __global__ void softplus_f32(float* out, const float* x, int n) {
    EACH(i, n) out[i] = fmaxf(x[i], 0.f) + log1pf(expf(-fabsf(x[i])));
}
extern "C" __global__ void swiglu_f32(float* out, const float* gate, const float* up, int n, int period) {
    EACH(i, n) out[i] = gate[i] / (1.f + expf(-gate[i])) * up[i];
}
extern "C" __global__ void cpy_32(u32* out, const u32* x, int n) {
    EACH(i, n) out[i] = x[i];
}
extern "C" __global__ void cast_f16(f16* out, const float* x, int n) {
    EACH(i, n) store(out + i, x[i]);
}

// x (N, heads, D): adjacent pairs rotate by positions[n] * turns[pair] half turns; n counts pairs.
extern "C" __global__ void rope_f32(
    float2* out, const float2* x, const int* positions, const double* turns, int n, int heads, int half_head) {
    EACH(i, n) {
        const double angle = positions[i / (heads * half_head)] * turns[i % half_head];
        float s, c;
        sincospif(float(angle - 2. * rint(angle * .5)), &s, &c);
        const float2 p = x[i];
        out[i] = make_float2(p.x * c - p.y * s, p.x * s + p.y * c);
    }
}

// One block per row of `width` elements, a multiple of 4; times weight (width,) unless that is null.
extern "C" __global__ void rms_norm_f32(float4* out, const float4* x, const float4* weight, int width, float eps) {
    __shared__ float scratch[WARP];
    float4 w[4] = {};
    const int n = width / 4, own = threadIdx.x;
    if (weight) {  // weights are constant, so this may precede the wait
#pragma unroll
        for (int i = 0; i < 4; i++) if (own + i * blockDim.x < n) w[i] = weight[own + i * blockDim.x];
    }
    let_successor_start();
    wait_for_predecessor();
    x += i64(blockIdx.x) * n;
    out += i64(blockIdx.x) * n;
    float squares = 0.f;
    for (int i = own; i < n; i += blockDim.x) {
        const float4 v = x[i];
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float factor = rsqrtf(block_sum(squares, scratch) / width + eps);
    for (int i = own, round = 0; i < n; i += blockDim.x, round++) {
        const float4 v = x[i];
        const float4 u = !weight ? make_float4(1.f, 1.f, 1.f, 1.f) : round < 4 ? w[round] : weight[i];
        out[i] = make_float4(v.x * factor * u.x, v.y * factor * u.y, v.z * factor * u.z, v.w * factor * u.w);
    }
}

// x / max(sqrt(sum of squares), eps) of each row, one block per row.
extern "C" __global__ void l2_norm_f32(float* out, const float* x, int width, float eps) {
    __shared__ float scratch[WARP];
    let_successor_start();
    wait_for_predecessor();
    x += i64(blockIdx.x) * width;
    out += i64(blockIdx.x) * width;
    float squares = 0.f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) squares += x[i] * x[i];
    const float length = fmaxf(sqrtf(block_sum(squares, scratch)), eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[i] = x[i] / length;
}
extern "C" __global__ void sum_rows_f32(float* out, const float* x, int width) {
    __shared__ float scratch[WARP];
    let_successor_start();
    wait_for_predecessor();
    float sum = 0.f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += x[i64(blockIdx.x) * width + i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Column of the first largest value of each row: one block of 1024 threads per row.
extern "C" __global__ void __launch_bounds__(1024) argmax_f32(int* out, const float* x, int columns) {
    __shared__ float best_of_warp[WARP];
    __shared__ int column_of_warp[WARP];
    let_successor_start();
    wait_for_predecessor();
    x += i64(blockIdx.x) * columns;
    float best = MINUS_INFINITY;
    int column = 0x7fffffff;
#pragma unroll 8
    for (int i = threadIdx.x; i < columns; i += 1024) {
        const float v = x[i];
        if (v > best) best = v, column = i;
    }
#pragma unroll
    for (int pass = 0; pass < 2; pass++) {
        for (int offset = WARP / 2; offset; offset /= 2) {
            const float v = __shfl_xor_sync(FULL, best, offset);
            const int c = __shfl_xor_sync(FULL, column, offset);
            if (v > best || (v == best && c < column)) best = v, column = c;
        }
        if (pass) break;
        if (threadIdx.x % WARP == 0) best_of_warp[threadIdx.x / WARP] = best, column_of_warp[threadIdx.x / WARP] = column;
        __syncthreads();
        if (threadIdx.x >= WARP) return;
        best = best_of_warp[threadIdx.x], column = column_of_warp[threadIdx.x];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = column;
}
