// Seeded normal weights generated on the device: value i depends only on the seed and i.

#include "common.cuh"

__device__ __forceinline__ u64 mix(u64 x) {  // splitmix64
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
__device__ __forceinline__ float normal(u64 seed, u64 i) {  // Box and Muller
    const u64 bits = mix(mix(seed) ^ i);
    const float u = (u32(bits) + 1.f) * 0x1p-32f, angle = u32(bits >> 32) * 0x1p-31f;
    return sqrtf(-2.f * logf(fminf(u, 1.f))) * cospif(angle);
}

extern "C" __global__ void normal_f32(float* out, u64 seed, i64 size, float scale) {
    for (i64 i = blockIdx.x * i64(blockDim.x) + threadIdx.x; i < size; i += i64(gridDim.x) * blockDim.x)
        out[i] = scale * normal(seed, i);
}
extern "C" __global__ void normal_f16(f16* out, u64 seed, i64 size, float scale) {
    for (i64 i = blockIdx.x * i64(blockDim.x) + threadIdx.x; i < size; i += i64(gridDim.x) * blockDim.x)
        store(out + i, scale * normal(seed, i));
}
// A warp per block of 32; quantised as in ggml: scale = largest magnitude / 127. `size` is a multiple of 32.
extern "C" __global__ void normal_q8_0(u8* out, u64 seed, i64 size, float scale) {
    for (i64 i = blockIdx.x * i64(blockDim.x) + threadIdx.x; i < size; i += i64(gridDim.x) * blockDim.x) {
        const float x = scale * normal(seed, i), step = warp_max(fabsf(x)) / 127.f;
        out[i] = u8(static_cast<signed char>(step > 0.f ? roundf(x / step) : 0.f));
        if (i % WARP == 0) store(reinterpret_cast<f16*>(out + size) + i / WARP, step);
    }
}
