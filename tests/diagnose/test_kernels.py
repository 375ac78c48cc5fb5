"""Kernels by name."""

from __future__ import annotations

import pytest

from nearpeak.diagnose.kernels import traits_of


@pytest.mark.parametrize(
    ("name", "family", "tensor_cores", "number_format"),
    [
        ("volta_sgemm_128x64_nn", "matrix", False, "fp32"),
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "matrix", True, "16-bit"),
        ("turing_h1688gemm_256x64_ldg8_tn", "matrix", True, "16-bit"),
        ("ampere_sgemm_32x128_tn", "matrix", False, "fp32"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn", "matrix", True, "16-bit"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nt_align4>(Params)", "matrix", True, "tf32"),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(Params)", "matrix", False, "fp32"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1", "matrix", True, "16-bit"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "matrix", True, "16-bit"),
        ("implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1>", "convolution", False, "fp32"),
        ("void pytorch_flash::flash_fwd_kernel<Traits<64, 128, bfloat16_t>>", "attention", True,
         "16-bit"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN", "matrix", True, "16-bit"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SN_APM1", "matrix", False, "fp32"),
        ("Cijk_Alik_Bljk_HB_MT64x64x16_MI32x32x8x1_SE", "matrix", True, "16-bit"),
        ("Cijk_Ailk_Bljk_BSS_BH_Bias_HA_S_SAV_UserArgs_MT256x16x64_MI16x16x1", "matrix", True, "16-bit"),
        ("Cijk_Ailk_Bjlk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x64x16_MI16x16x1", "matrix", True, "tf32"),
        ("Cijk_Ailk_Bjlk_S_B_Bias_HA_S_SAV_UserArgs_MT128x64x16_MI16x16x1", "matrix", True, "fp32"),
        ("Cijk_Alik_Bljk_F8F8S_BH_MT256x128x128_MI32x32x1", "matrix", True, "8-bit"),
        ("Cijk_Ailk_Bljk_DB_MT64x64x16_MI16x16x4x1_SN", "matrix", True, "fp64"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", "convolution", False, "fp32"),
        ("igemm_fwd_gtcx_nhwc_fp16_bx0_ex1_bt128x128x32_wt32x32x8", "convolution", True, "16-bit"),
        ("attn_fwd.kd", "attention", True, "unknown"),
        ("void vectorized_elementwise_kernel<4, AddFunctor<float>>", "elementwise", False, "fp32"),
        ("Memset (Device)", "set", False, "unknown"),
        ("my_kernel", "other", False, "unknown"),
    ],
)  # fmt: skip
def test_traits(name: str, family: str, tensor_cores: bool, number_format: str) -> None:
    traits = traits_of(name)
    assert (traits.family, traits.uses_tensor_cores, traits.number_format) == (family, tensor_cores, number_format)
