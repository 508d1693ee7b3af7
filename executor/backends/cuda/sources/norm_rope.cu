// rms_norm of every head or of all heads together, rope in any mode, and the write into the KV cache: one warp per head
// and token. x (N, heads, D), D at most 256; norm (width,) or null; turns (dims / 2,) half turns per position.

#include "common.cuh"

#define MOST_VALUES 256

struct NormRope {
    const float* x;
    const float* norm;
    const int* positions;
    const double* turns;
    const i64* rows;  // (N,) rows of the cache (R, heads * D), or null: out is (N, heads, D)
    void* out;
    int heads, head, dims, neox;  // the first `dims` values rotate, in adjacent pairs or pairs of halves
    int width;  // number of values normalised together: D, or heads * D
    float eps;
};

template <class To>
__device__ __forceinline__ void norm_rope(const NormRope& a) {
    __shared__ float y[MOST_VALUES];
    const int head = blockIdx.x, token = blockIdx.y, lane = threadIdx.x;
    let_successor_start();
    wait_for_predecessor();
    const float* row = a.x + i64(token) * a.heads * a.head;
    const float* x = row + head * a.head;
    To* out = static_cast<To*>(a.out) + ((a.rows ? a.rows[token] : token) * a.heads + head) * a.head;
    float squares = 0.f;
    for (int i = lane; i < a.head; i += WARP) y[i] = x[i];
    if (a.norm) {
        const bool together = a.width != a.head;
        const float* normed = together ? row : x;
        for (int i = lane; i < a.width; i += WARP) squares += normed[i] * normed[i];
        const float factor = rsqrtf(warp_sum(squares) / a.width + a.eps);
        for (int i = lane; i < a.head; i += WARP) y[i] *= factor * a.norm[together ? head * a.head + i : i];
    }
    __syncwarp();
    const int pairs = a.dims / 2;
    for (int p = lane; p < pairs; p += WARP) {
        const double angle = a.positions[token] * a.turns[p];
        float sine, cosine;
        sincospif(float(angle - 2. * rint(angle * .5)), &sine, &cosine);
        const int first = a.neox ? p : 2 * p, second = a.neox ? p + pairs : 2 * p + 1;
        const float u = y[first], v = y[second];
        store(out + first, u * cosine - v * sine);
        store(out + second, u * sine + v * cosine);
    }
    for (int i = a.dims + lane; i < a.head; i += WARP) store(out + i, y[i]);
}
extern "C" __global__ void norm_rope_f32(const __grid_constant__ NormRope a) { norm_rope<float>(a); }
extern "C" __global__ void norm_rope_f16(const __grid_constant__ NormRope a) { norm_rope<f16>(a); }
