// Shared by all kernels: number formats, reductions, programmatic launch. No headers, so that NVRTC needs none.
// N is the number of tokens in the step. Activations are f32; weights f32, f16 or q8_0; the KV cache f32 or f16.

typedef unsigned char u8;
typedef unsigned short f16;  // the bits of an IEEE half
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define WARP 32
#define FULL 0xffffffffu
#define MINUS_INFINITY __int_as_float(0xff800000)

// Programmatic dependent launch: a kernel may start before its predecessor in the stream has ended. It must not
// access memory that earlier kernels write, nor write any, before `wait_for_predecessor`. Both calls do nothing in an
// ordinary launch. Every kernel makes both, so that all kernels before the predecessor have ended too.
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void let_successor_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
__device__ __forceinline__ void let_successor_start() {}
__device__ __forceinline__ void wait_for_predecessor() {}
#endif

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ __forceinline__ void store(float* to, float x) { *to = x; }
__device__ __forceinline__ void store(f16* to, float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    *to = y;
}

// 16 bytes that are read once: they bypass L1, which keeps the activations.
__device__ __forceinline__ uint4 load_streaming(const void* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// Prefetch into L2; harmless even while others write there.
__device__ __forceinline__ void prefetch(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

__device__ __forceinline__ float warp_sum(float x) {
    for (int offset = WARP / 2; offset; offset /= 2) x += __shfl_xor_sync(FULL, x, offset);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int offset = WARP / 2; offset; offset /= 2) x = fmaxf(x, __shfl_xor_sync(FULL, x, offset));
    return x;
}

// Sum over a block of whole warps; every thread gets it. `scratch` holds 32 floats.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    x = threadIdx.x % WARP < blockDim.x / WARP ? scratch[threadIdx.x % WARP] : 0.f;
    x = warp_sum(x);
    __syncthreads();
    return x;
}
__device__ __forceinline__ float block_max(float x, float* scratch) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    x = threadIdx.x % WARP < blockDim.x / WARP ? scratch[threadIdx.x % WARP] : MINUS_INFINITY;
    x = warp_max(x);
    __syncthreads();
    return x;
}

// Weight formats. A matrix is (O, I), row-major. `VALUES` consecutive values of a row are one 16-byte load;
// I is a multiple of VALUES. A lane has `LOADS` of them in flight at a time, see mul_mat_block.cu.
struct F32 {
    static constexpr int VALUES = 4, LOADS = 16;
    uint4 raw;
    __device__ __forceinline__ void load(const u8* matrix, i64 first, i64 size) { raw = load_streaming(matrix + 4 * first); }
    __device__ __forceinline__ float dot(const float* x) const {
        return __uint_as_float(raw.x) * x[0] + __uint_as_float(raw.y) * x[1]
             + __uint_as_float(raw.z) * x[2] + __uint_as_float(raw.w) * x[3];
    }
    __device__ static __forceinline__ float value(const u8* matrix, i64 at, i64 size) {
        return reinterpret_cast<const float*>(matrix)[at];
    }
};

struct F16 {
    static constexpr int VALUES = 8, LOADS = 16;
    uint4 raw;
    __device__ __forceinline__ void load(const u8* matrix, i64 first, i64 size) { raw = load_streaming(matrix + 2 * first); }
    __device__ __forceinline__ float dot(const float* x) const {
        const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum = fmaf(to_float(f16(words[i] & 0xffff)), x[2 * i], sum);
            sum = fmaf(to_float(f16(words[i] >> 16)), x[2 * i + 1], sum);
        }
        return sum;
    }
    __device__ static __forceinline__ float value(const u8* matrix, i64 at, i64 size) {
        return to_float(reinterpret_cast<const f16*>(matrix)[at]);
    }
};

// ggml's q8_0: blocks of 32 values, each an int8 times the block's f16 scale. Its 34-byte blocks would make every
// load unaligned, so all int8 of the matrix come first, followed by all scales; `size` is O * I.
struct Q8_0 {
    static constexpr int VALUES = 16, LOADS = 8;
    uint4 raw;
    f16 scale;
    __device__ __forceinline__ void load(const u8* matrix, i64 first, i64 size) {
        raw = load_streaming(matrix + first);
        scale = reinterpret_cast<const f16*>(matrix + size)[first / 32];
    }
    __device__ __forceinline__ float dot(const float* x) const {
        const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 16; i++) sum = fmaf(float(static_cast<signed char>(words[i / 4] >> (8 * (i % 4)))), x[i], sum);
        return sum * to_float(scale);
    }
    __device__ static __forceinline__ float value(const u8* matrix, i64 at, i64 size) {
        return float(reinterpret_cast<const signed char*>(matrix)[at])
             * to_float(reinterpret_cast<const f16*>(matrix + size)[at / 32]);
    }
};
