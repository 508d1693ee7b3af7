"""The kernels of models, as engines name them, with durations drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.engines.drawn import Drawn
from tests.engines.machine import Kernel

LAYERS: Final = {
    "ggml": [
        "void rms_norm_f32<1024, true>", "void quantize_q8_1", "void mul_mat_vec_q<(ggml_type)8, 1>",
        "void rope_norm<true, float>", "void k_set_rows<float, __half>", "void flash_attn_ext_vec<128, 1>",
        "void mul_mat_vec_q<(ggml_type)8, 1, true>", "void k_bin_bcast<op_add>",
    ],
    "vllm": [
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>", "nvjet_tst_64x8_64x16_1x4_v_bz_TNT",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>",
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>", "nvjet_tst_128x8_64x12_2x1_v_bz_TNT",
        "void vllm::act_and_mul_kernel<c10::BFloat16>", "nvjet_tst_64x8_64x16_2x4_v_bz_TNT",
    ],
    "sglang": [
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
        "void store_kvcache<__nv_bfloat16>", "void flashinfer::BatchDecodeWithPagedKVCacheKernel<true>",
        "nvjet_tst_128x8_64x12_1x2_v_bz_TNT", "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16>",
        "nvjet_tst_64x8_64x16_1x1_v_bz_TNT",
    ],
    "tensorrt": [
        "void tensorrt_llm::kernels::generalRmsNorm<__half>", "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x32x64",
        "void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<uint16_t, 128>",
        "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x32x64", "void tensorrt_llm::kernels::swiGLUKernel<__half>",
    ],
    "torch": [
        "void at::native::reduce_kernel<512, 1, at::native::MeanOps<float>>",
        "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_tn",
        "void at::native::elementwise_kernel<128, 4, at::native::CUDAFunctor_mul>",
        "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>>", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
        "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel>",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn",
    ],
    "xla": [
        "loop_add_fusion_3", "gemm_fusion_dot_12", "input_reduce_fusion_2", "loop_select_fusion", "gemm_fusion_dot_7",
        "loop_multiply_fusion_1",
    ],
}  # fmt: skip
"""Of an engine: the kernels of a layer of one token each."""
HEADS: Final = {
    "ggml": ("void k_get_rows_float", "void mul_mat_vec_q<(ggml_type)14, 1>"),
    "vllm": ("void at::native::indexSelectSmallIndex", "nvjet_tst_64x8_64x16_4x2_h_bz_TNT"),
    "sglang": ("void at::native::indexSelectSmallIndex", "nvjet_tst_64x8_64x16_4x2_h_bz_TNT"),
    "tensorrt": ("void tensorrt_llm::kernels::lookup_kernel<__half>", "sm90_xmma_gemm_f16f32_tn_n_tilesize64x64x64"),
    "torch": ("void at::native::indexSelectSmallIndex", "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2"),
    "xla": ("loop_gather_fusion", "gemm_fusion_dot_40"),
}
SAMPLING: Final = [
    "void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps<float>>",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>",
    "void at::native::index_elementwise_kernel<128, 4>",
]
"""Small kernels that choose a token from the logits."""
MOST_KERNELS: Final = 90


@dataclass(frozen=True)
class Model:
    """A model: its first kernel, those of a layer, how many layers, its last kernel; what a prompt takes longer."""

    embed: Kernel
    layer: tuple[Kernel, ...]
    layers: int
    head: Kernel
    longer: int

    @classmethod
    def of(cls, drawn: Drawn, family: str, name: str = "", most: int = MOST_KERNELS) -> Model:
        """A model of a family of `LAYERS` with at most so many kernels."""
        every = LAYERS[family]
        size = drawn.whole(f"{name}kernels per layer", min(4, len(every)), len(every))
        layers = drawn.whole(f"{name}layers", 3, max(3, most // size))
        scale = drawn.ns(f"{name}kernel", 1_500, 15_000)
        lengths = [scale * drawn.one_of(f"{name}kernel {at}, scale", 0.5, 1, 1.5, 3) for at in range(size)]
        blocks = [drawn.one_of(f"{name}kernel {at}, blocks", 8, 32, 128) for at in range(size)]
        layer = tuple(Kernel(*each) for each in zip(every[:size], map(round, lengths), blocks, strict=True))
        first, last = HEADS[family]
        longer = drawn.whole(f"{name}prompt, times as long", 4, 20)
        return cls(Kernel(first, scale), layer, layers, Kernel(last, 4 * scale, 512), longer)

    def layer_at(self, growth: float = 1) -> list[Kernel]:
        """The kernels of one layer; attention takes so many times as long as at first."""
        return [
            kernel._replace(ns=round(kernel.ns * growth)) if "att" in kernel.name or "flash" in kernel.name else kernel
            for kernel in self.layer
        ]

    def token(self, growth: float = 1) -> list[Kernel]:
        """The kernels of a decode step."""
        return [self.embed, *self.layer_at(growth) * self.layers, self.head]

    def prompt(self, tokens: float = 1) -> list[Kernel]:
        """The kernels of a prompt: products of other shapes, more blocks, and longer."""
        wide = [
            Kernel(_many_rows(kernel.name), round(kernel.ns * self.longer * tokens), round(kernel.blocks * 16 * tokens))
            for kernel in (self.embed, *self.layer * self.layers)
        ]
        return [*wide, self.head]


def _many_rows(name: str) -> str:
    """The kernel for many rows instead of one."""
    for one, many in (
        ("mul_mat_vec_q", "mul_mat_q"), ("flash_attn_ext_vec", "flash_attn_ext_f16"), ("x8_64", "x256_64"),
        ("splitkv_kernel", "kernel"), ("BatchDecode", "BatchPrefill"), ("tilesize64", "tilesize256"),
        ("masked_multihead_attention", "fmha_v2_flash_attention"), ("gemm_bf16_64x64", "gemm_bf16_256x128"),
    ):  # fmt: skip
        name = name.replace(one, many)
    return name


def sampling(drawn: Drawn) -> list[Kernel]:
    """The kernels that choose a token."""
    count, ns = drawn.whole("sampling kernels", 1, 8), drawn.ns("sampling kernel", 1_200, 6_000)
    return [Kernel(SAMPLING[at % len(SAMPLING)], ns) for at in range(count)]
