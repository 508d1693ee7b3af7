// For long rows: the warps of a block share each row. Every lane keeps its part of x in registers, CHUNKS (defined by the
// host) times VALUES values, and the partial sums of the warps are added in shared memory at the end. Only weights are
// therefore loaded while rows are processed. A block computes `rows_per_block` rows.

#include "mul_mat.cuh"

// The lane's part of a row: chunk c of every CHUNKS * blockDim.x.
template <class Weight, int SHAPE>
__device__ __forceinline__ void load_row(Weight (&w)[CHUNKS], const Arguments& a, int row) {
    const u8* matrix = SHAPE == GATED && row % 2 ? a.weight2 : a.weight;
    const i64 first = i64(SHAPE == GATED ? row / 2 : row) * a.inputs, size = i64(a.outputs) * a.inputs;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = (c * blockDim.x + threadIdx.x) * Weight::VALUES;
        if (at < a.inputs) w[c].load(matrix, first + at, size);
    }
}

// The lane's part of a vector, zero past its end.
template <class Weight>
__device__ __forceinline__ void load_part(float (&x)[CHUNKS][Weight::VALUES], const float* from, int inputs) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < Weight::VALUES; i += 4) {
            const int at = (c * blockDim.x + threadIdx.x) * Weight::VALUES + i;
            const float4 v = at < inputs ? *reinterpret_cast<const float4*>(from + at) : make_float4(0.f, 0.f, 0.f, 0.f);
            x[c][i] = v.x, x[c][i + 1] = v.y, x[c][i + 2] = v.z, x[c][i + 3] = v.w;
        }
}

template <class Weight, int SHAPE, bool NORM, class Epilogue>
__device__ __forceinline__ void mul_mat(const Arguments& a) {
    extern __shared__ float partial[];  // (rows of the block, warps), then the sums of squares (warps)
    constexpr int per_group = SHAPE == SINGLE ? 1 : 2;
    constexpr int loads = Weight::LOADS / (CHUNKS * Weight::VALUES > 32 ? 2 : 1);  // long rows leave few registers
    constexpr int window = loads < CHUNKS ? 1 : loads / CHUNKS;                    // rows in flight
    const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, token = blockIdx.y;
    const int first = blockIdx.x * a.rows_per_block, all = SHAPE == GATED ? 2 * a.outputs : a.outputs;
    const int rows = min(a.rows_per_block, all - first);

    Weight w[window][CHUNKS];
    float norm[CHUNKS][Weight::VALUES];  // weights are constant, so both may be loaded before the wait
#pragma unroll
    for (int i = 0; i < window; i++)
        if (i < rows) load_row<Weight, SHAPE>(w[i], a, first + i);
    if (NORM) load_part<Weight>(norm, a.norm, a.inputs);
    let_successor_start();
    wait_for_predecessor();

    float x[CHUNKS][Weight::VALUES];
    load_part<Weight>(x, a.x + i64(token) * a.inputs, a.inputs);
    Epilogue epilogue;
    int group = threadIdx.x;
    const int group_row = SHAPE == GATED ? first / 2 : first, step = SHAPE == PAIR ? 2 : 1;
    if (group * per_group < rows) epilogue.prepare(a, token, group_row + group * step);
    if (NORM) {
        float squares = 0.f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int i = 0; i < Weight::VALUES; i++) squares = fmaf(x[c][i], x[c][i], squares), x[c][i] *= norm[c][i];
        squares = warp_sum(squares);
        if (lane == 0) partial[rows * warps + warp] = squares;
    }

    for (int row = 0; row < rows; row += window) {
        float sums[window];
#pragma unroll
        for (int i = 0; i < window; i++) {
            sums[i] = 0.f;
            if (row + i < rows) {
#pragma unroll
                for (int c = 0; c < CHUNKS; c++)
                    if ((c * blockDim.x + threadIdx.x) * Weight::VALUES < a.inputs) sums[i] += w[i][c].dot(x[c]);
            }
            if (row + i + window < rows) load_row<Weight, SHAPE>(w[i], a, first + row + i + window);
        }
#pragma unroll
        for (int offset = WARP / 2; offset; offset /= 2)
#pragma unroll
            for (int i = 0; i < window; i++) sums[i] += __shfl_xor_sync(FULL, sums[i], offset);
#pragma unroll
        for (int i = 0; i < window; i++)
            if (lane == i && row + i < rows) partial[(row + i) * warps + warp] = sums[i];
    }
    __syncthreads();

    float factor = 1.f;
    if (NORM) {
        float squares = 0.f;
        for (int i = 0; i < warps; i++) squares += partial[rows * warps + i];
        factor = rsqrtf(squares / a.inputs + a.eps);
    }
    for (; group * per_group < rows; group += blockDim.x) {
        float y[2] = {0.f, 0.f};
#pragma unroll
        for (int r = 0; r < per_group; r++)
            for (int i = 0; i < warps; i++) y[r] += partial[(group * per_group + r) * warps + i];
        if (group >= blockDim.x) epilogue.prepare(a, token, group_row + group * step);
        epilogue.write(a, token, group_row + group * step, make_float2(y[0] * factor, y[1] * factor));
    }
}

#define KERNEL(name, weight, shape, norm, ...) \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ Arguments a) { \
        mul_mat<weight, shape, norm, __VA_ARGS__>(a); \
    }

KERNELS(f32, F32, float)
KERNELS(f16, F16, f16)
KERNELS(q8_0, Q8_0, f16)
