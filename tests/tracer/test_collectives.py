"""Names of kernels that communicate, and of kernels that only look like it."""

import pytest

from tests.tracer.handmade import Script
from tracer.model.collectives import collectives, computes, is_collective

COMMUNICATE = [
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernelDebug_Generic(ncclDevComm*, channelMasks, ncclWork*)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs)",
    "ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)",
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "mscclKernel_Sum_float_Simple(ncclDevComm*, mscclAlgo*)",
    "void mscclpp::collective::allreducePacket<half>(half*, half*)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals, int)",
    "cross_device_reduce_2stage",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<half>, half>(half const*)",
    "void aiter::allreduce_fusion_kernel_2stage<float, 8>(aiter::RankData*)",
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1, half, 8>(Params)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<1, __nv_bfloat16>(Params)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 4>(tensorrt_llm::kernels::AllReduceParams)",
    "void tensorrt_llm::kernels::moeA2ADispatchKernel<8>(Params)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
    "void c10d::symmetric_memory::(anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8>(float**)",
    "void c10d::symmetric_memory::barrier_kernel(unsigned int**, int)",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
    "void deep_ep::internode_ll::combine<false, 7168>(void*)",
    "nvshmemi_barrier_threadgroup",
    "void mori::moe::EpDispatchInterNodeKernel<float>(Args)",
]
COMPUTE = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::all_reduce<float> > >(float)",
    "void cutlass::Kernel2<cutlass::gemm::collective::AllReduce<float> >(Params)",
    "triton_red_fused_add_all_reduce_rms_norm_wait_tensor_5",
    "small_reduce_kernel(float*)",
    "void splitKreduce_kernel<32, 16, int, float, float>(cublasSplitKParams<float>)",
    "void cub::DeviceReduceKernel<Policy, int>(int*)",
    "deep_ep::layout::get_dispatch_layout(long const*)",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn",
    "void moe_align_block_size_kernel<int>(int*)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)",
    "<" * 100_000,
    "",
]


@pytest.mark.parametrize("name", COMMUNICATE)
def test_communication(name: str) -> None:
    assert is_collective(name)


@pytest.mark.parametrize("name", COMPUTE, ids=lambda name: name[:40])
def test_compute(name: str) -> None:
    assert not is_collective(name)


def test_a_short_name_that_says_nothing_is_known_by_the_full_one() -> None:
    script = Script()
    script.launch((0, 10), (20, 30))
    script.launch((10, 20), (30, 40))
    trace = script.trace
    names = trace["kernels"]["name"].cat.rename_categories({"k": "void deep_ep::intranode::dispatch<8>(int4*)"})
    trace.tables["kernels"] = trace["kernels"].assign(name=names)
    assert collectives(trace["kernels"]).all()
    assert not computes(trace.activities()).any()
