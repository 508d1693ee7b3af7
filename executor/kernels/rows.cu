// Rows of tables: blockIdx.y is the row, `width` its elements.

#include "common.cuh"

template <class Weight>
__device__ __forceinline__ void gather(float* out, const u8* table, const int* rows, int width, i64 size) {
    let_successor_start();
    wait_for_predecessor();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width) out[i64(blockIdx.y) * width + i] = Weight::value(table, i64(rows[blockIdx.y]) * width + i, size);
}
// out (N, width) from table (R, width); size is R * width.
extern "C" __global__ void get_rows_f32(float* out, const u8* table, const int* rows, int width, i64 size) {
    gather<F32>(out, table, rows, width, size);
}
extern "C" __global__ void get_rows_f16(float* out, const u8* table, const int* rows, int width, i64 size) {
    gather<F16>(out, table, rows, width, size);
}
extern "C" __global__ void get_rows_q8_0(float* out, const u8* table, const int* rows, int width, i64 size) {
    gather<Q8_0>(out, table, rows, width, size);
}

__device__ __forceinline__ void store(int* to, int x) { *to = x; }
template <class To, class From>
__device__ __forceinline__ void scatter(To* out, const From* values, const i64* rows, int width) {
    let_successor_start();
    wait_for_predecessor();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x)
        store(out + rows[blockIdx.y] * width + i, values[i64(blockIdx.y) * width + i]);
}
// values (N, width) into the rows of out (R, width).
extern "C" __global__ void set_rows_f32(float* out, const float* values, const i64* rows, int width) {
    scatter(out, values, rows, width);
}
extern "C" __global__ void set_rows_f16(f16* out, const float* values, const i64* rows, int width) {
    scatter(out, values, rows, width);
}
extern "C" __global__ void set_rows_i32(int* out, const int* values, const i64* rows, int width) {
    scatter(out, values, rows, width);
}
