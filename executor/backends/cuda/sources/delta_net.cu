// Linear attention: causal convolution and the gated delta rule, both with state that stays on the device.

#include "common.cuh"

#define MOST_TAPS 8
#define WARPS 8
#define MOST_KEYS 256
#ifndef ROWS
#define ROWS 16  // rows of the state per warp: key size / WARPS
#endif

// One thread per channel, blockIdx.y is the sequence. x (N, C), weight (C, taps), state (S, taps - 1, C).
template <bool SILU>
__device__ __forceinline__ void convolve(float* out, const float* x, const float* weight, float* state, int channels, int taps, int tokens) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, sequence = blockIdx.y;
    let_successor_start();
    wait_for_predecessor();
    if (c >= channels) return;
    float w[MOST_TAPS], z[MOST_TAPS];
    state += i64(sequence) * (taps - 1) * channels + c;
#pragma unroll
    for (int j = 0; j < MOST_TAPS; j++) {
        w[j] = j < taps ? weight[c * taps + j] : 0.f;
        z[j] = j < taps - 1 ? state[i64(j) * channels] : 0.f;
    }
    for (int t = 0; t < tokens; t++) {
        const i64 at = (i64(sequence) * tokens + t) * channels + c;
        const float newest = x[at];
        float sum = 0.f;
#pragma unroll
        for (int j = 0; j < MOST_TAPS; j++) {
            if (j == taps - 1) z[j] = newest;
            if (j < taps) sum = fmaf(w[j], z[j], sum);
        }
        out[at] = SILU ? sum / (1.f + expf(-sum)) : sum;
#pragma unroll
        for (int j = 0; j + 1 < MOST_TAPS; j++) z[j] = z[j + 1];
    }
#pragma unroll
    for (int j = 0; j < MOST_TAPS; j++)
        if (j < taps - 1) state[i64(j) * channels] = z[j];
}
extern "C" __global__ void ssm_conv_f32(float* out, const float* x, const float* weight, float* state, int channels, int taps, int tokens) {
    convolve<false>(out, x, weight, state, channels, taps, tokens);
}
extern "C" __global__ void ssm_conv_silu_f32(float* out, const float* x, const float* weight, float* state, int channels, int taps, int tokens) {
    convolve<true>(out, x, weight, state, channels, taps, tokens);
}

struct DeltaNet {
    const float *q, *k;     // (N, key heads, Dk)
    const float* v;         // (N, heads, Dv)
    const float *g, *beta;  // (N, heads)
    float* state;           // (S, heads, Dk, Dv)
    float* out;             // (N, heads, Dv)
    int heads, key_heads, key_size, value_size, tokens;
    float scale;
};

// blockIdx.x is 32 columns of the state, blockIdx.y a head of a sequence. A lane holds ROWS rows of a column.
extern "C" __global__ void __launch_bounds__(WARPS * WARP) gated_delta_net_f32(const __grid_constant__ DeltaNet a) {
    __shared__ float partial[2][WARPS][WARP], q[MOST_KEYS], k[MOST_KEYS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.y % a.heads, sequence = blockIdx.y / a.heads;
    const int column = blockIdx.x * WARP + lane, key_head = head / (a.heads / a.key_heads);
    const bool inside = column < a.value_size;
    float* state = a.state + ((i64(sequence) * a.heads + head) * a.key_size + warp * ROWS) * a.value_size + column;
    float s[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) s[r] = inside ? state[i64(r) * a.value_size] : 0.f;  // written by an earlier step
    let_successor_start();
    wait_for_predecessor();
    for (int t = 0; t < a.tokens; t++) {
        const i64 token = i64(sequence) * a.tokens + t, of_head = token * a.heads + head;
        __syncthreads();
        for (int i = threadIdx.x; i < a.key_size; i += WARPS * WARP) {
            q[i] = a.q[(token * a.key_heads + key_head) * a.key_size + i];
            k[i] = a.k[(token * a.key_heads + key_head) * a.key_size + i];
        }
        const float decay = expf(a.g[of_head]), beta = a.beta[of_head];
        const float v = inside ? a.v[of_head * a.value_size + column] : 0.f;
        __syncthreads();
        float sum = 0.f;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            s[r] *= decay;
            sum = fmaf(s[r], k[warp * ROWS + r], sum);
        }
        partial[0][warp][lane] = sum;
        __syncthreads();
        float predicted = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) predicted += partial[0][w][lane];
        const float delta = beta * (v - predicted);
        sum = 0.f;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            s[r] = fmaf(k[warp * ROWS + r], delta, s[r]);
            sum = fmaf(s[r], q[warp * ROWS + r], sum);
        }
        partial[1][warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && inside) {
            float out = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) out += partial[1][w][lane];
            a.out[of_head * a.value_size + column] = out * a.scale;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (inside) state[i64(r) * a.value_size] = s[r];
}
