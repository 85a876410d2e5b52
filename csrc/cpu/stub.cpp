// SPDX-License-Identifier: Apache-2.0
// Stands in until the real kernels land.
#include "cpu/linear.h"
namespace ladder::cpu {
std::vector<Isa> available_isas() { return {Isa::generic}; }
std::string_view name(Isa) { return "generic"; }
void linear(const WeightView& w, const Matrix& x, const void* bias, const Matrix& y, Isa, const Parallel& p, const Gemm& gemm) {
  std::vector<float> d(w.n*w.k); dequantize_rows(w,0,w.n,d.data());
  if (x.dtype==Float::float32) { gemm((float*)x.data,x.rows,w.k,d.data(),w.n,(float*)y.data,y.stride);
   if(bias) for(int64_t m=0;m<x.rows;m++) for(int64_t n=0;n<w.n;n++) ((float*)y.data)[m*y.stride+n]+=((const float*)bias)[n]; }
}
}
