// Matrix-vector products: out[n] = W x[n], fused with the ops directly before and after them in the graph.
// W (O, I) row-major, x (N, I); blockIdx.y is the token n.

#include "common.cuh"

struct Arguments {
    const u8* weight;
    const u8* weight2;     // the up matrix of swiglu
    const float* x;
    const float* norm;     // (I,) weights of the preceding norm, or null
    const float* residual; // (N, O), add
    const int* positions;  // (N,), rope
    const double* turns;   // (head / 2,), rope: half turns per position
    const i64* rows;       // (N,), set_rows: the row of the destination (R, O)
    void* out;
    int outputs, inputs;
    int head;              // head size, rope
    int rows_per_block;
    float eps;             // rms_norm
};

// A group of rows gives one result: a single row; an adjacent pair that rope rotates; or, for swiglu, row g of both
// matrices, numbered 2g and 2g + 1.
enum Shape { SINGLE, PAIR, GATED };

// Epilogues: one thread processes the results of a group. `prepare` loads the operands of `write` early.
struct Plain {
    __device__ void prepare(const Arguments& a, int token, int row) {}
    __device__ void write(const Arguments& a, int token, int row, float2 y) {
        static_cast<float*>(a.out)[i64(token) * a.outputs + row] = y.x;
    }
};
struct Add {
    float residual;
    __device__ void prepare(const Arguments& a, int token, int row) { residual = a.residual[i64(token) * a.outputs + row]; }
    __device__ void write(const Arguments& a, int token, int row, float2 y) {
        static_cast<float*>(a.out)[i64(token) * a.outputs + row] = y.x + residual;
    }
};
struct Swiglu {
    __device__ void prepare(const Arguments& a, int token, int row) {}
    __device__ void write(const Arguments& a, int token, int row, float2 y) {
        static_cast<float*>(a.out)[i64(token) * a.outputs + row] = y.x / (1.f + expf(-y.x)) * y.y;
    }
};
struct Rope {
    float sine, cosine;
    __device__ void prepare(const Arguments& a, int token, int row) {
        const double angle = a.positions[token] * a.turns[row % a.head / 2];  // in half turns
        sincospif(float(angle - 2. * rint(angle * .5)), &sine, &cosine);
    }
    __device__ float2 turned(float2 y) const {
        return make_float2(y.x * cosine - y.y * sine, y.x * sine + y.y * cosine);
    }
    __device__ void write(const Arguments& a, int token, int row, float2 y) {
        *reinterpret_cast<float2*>(static_cast<float*>(a.out) + i64(token) * a.outputs + row) = turned(y);
    }
};
template <class Cell>
struct SetRows {
    Cell* cell;
    __device__ void prepare(const Arguments& a, int token, int row) {
        cell = static_cast<Cell*>(a.out) + a.rows[token] * a.outputs + row;
    }
    __device__ void write(const Arguments& a, int token, int row, float2 y) { store(cell, y.x); }
};
template <class Cell>
struct RopeSetRows {
    Rope rope;
    SetRows<Cell> rows;
    __device__ void prepare(const Arguments& a, int token, int row) {
        rope.prepare(a, token, row);
        rows.prepare(a, token, row);
    }
    __device__ void write(const Arguments& a, int token, int row, float2 y) {
        const float2 z = rope.turned(y);
        store(rows.cell, z.x);
        store(rows.cell + 1, z.y);
    }
};

// Instantiations for every file that defines `mul_mat` and KERNEL.
#define KERNELS(suffix, weight, cell) \
    KERNEL(mul_mat_##suffix, weight, SINGLE, false, Plain) \
    KERNEL(mul_mat_add_##suffix, weight, SINGLE, false, Add) \
    KERNEL(mul_mat_rope_##suffix, weight, PAIR, false, Rope) \
    KERNEL(mul_mat_rope_set_rows_##suffix, weight, PAIR, false, RopeSetRows<cell>) \
    KERNEL(mul_mat_set_rows_##suffix, weight, SINGLE, false, SetRows<cell>) \
    KERNEL(rms_norm_mul_mat_##suffix, weight, SINGLE, true, Plain) \
    KERNEL(rms_norm_mul_mat_swiglu_##suffix, weight, GATED, true, Swiglu)

