// Rows of tables: blockIdx.y is the row, `width` its elements.

#include "common.cuh"

template <class Weight>
__device__ __forceinline__ void gather(float* out, const u8* tables, const int* rows, int width, i64 size, int chosen, int height) {
    let_successor_start();
    wait_for_predecessor();
    const int i = blockIdx.x * blockDim.x + threadIdx.x, table = blockIdx.y / chosen;
    const i64 row = i64(table) * height + rows[blockIdx.y];
    if (i < width) out[i64(blockIdx.y) * width + i] = Weight::value(tables, row * width + i, size);
}
// out (N, width) from tables of `height` rows; each `chosen` row numbers belong to one table; size of all tables.
#define KERNEL(suffix, weight) \
    extern "C" __global__ void get_rows_##suffix( \
        float* out, const u8* tables, const int* rows, int width, i64 size, int chosen, int height) { \
        gather<weight>(out, tables, rows, width, size, chosen, height); \
    }
KERNEL(f32, F32)
KERNEL(f16, F16)
KERNEL(q8_0, Q8_0)

__device__ __forceinline__ void store(int* to, int x) { *to = x; }
template <class To, class From>
__device__ __forceinline__ void scatter(To* out, const From* values, const i64* rows, int width) {
    let_successor_start();
    wait_for_predecessor();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x)
        store(out + rows[blockIdx.y] * width + i, values[i64(blockIdx.y) * width + i]);
}
// Scatters values (N, width) to rows of out (R, width).
extern "C" __global__ void set_rows_f32(float* out, const float* values, const i64* rows, int width) {
    scatter(out, values, rows, width);
}
extern "C" __global__ void set_rows_f16(f16* out, const float* values, const i64* rows, int width) {
    scatter(out, values, rows, width);
}
extern "C" __global__ void set_rows_i32(int* out, const int* values, const i64* rows, int width) {
    scatter(out, values, rows, width);
}
