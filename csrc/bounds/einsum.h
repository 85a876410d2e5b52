// SPDX-License-Identifier: Apache-2.0
// What is computed, and how many bytes one element of each tensor costs. Everything in bounds/ is
// the model of Orojenesis (Huang et al., ISCA 2024): two memory levels, a backing store and a
// buffer, and the question how little can move between them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ladder::bounds {

inline constexpr int kMaxRanks = 7;

/// `coefficient * rank`, one summand of an axis index.
struct Term {
  int rank;                      ///< index into Einsum::ranks
  std::int64_t coefficient = 1;  ///< a stride or a dilation, at least 1
};

/// One axis of a tensor: the sum of its terms, such as `2 * p + r` in a convolution of stride 2.
using Axis = std::vector<Term>;

struct Tensor {
  std::string name;
  std::vector<Axis> axes;
  bool output = false;
  double store_bytes = 1;   ///< one element in the backing store, its share of scales included
  double buffer_bytes = 1;  ///< one element in the buffer: 4 for a float32 accumulator
  /// Bytes that moving one element costs when metadata shared by its group are already in the
  /// buffer: the code alone. Only `lower_bound` reads it. 0 means `store_bytes`.
  double code_bytes = 0;
};

struct Rank {
  std::string name;
  std::int64_t size;
};

/// `output[...] = sum of products of the inputs` over every rank that the output lacks. Each rank
/// occurs at most once in a tensor; the output, which is the last tensor, is indexed by plain
/// ranks.
struct Einsum {
  std::vector<Rank> ranks;
  std::vector<Tensor> tensors;
};

/// Throws InvalidArgument for what is not an Einsum as above, has more than 7 ranks, a size below
/// 1, a rank that no tensor uses, or counts that 63 bits do not hold.
void validate(const Einsum& einsum);

/// Multiplications: the product of all ranks.
std::int64_t iterations(const Einsum& einsum);

/// Multiplications and additions, the first addition into each output element left out.
std::int64_t operations(const Einsum& einsum);

/// Elements of a tensor, holes that a stride leaves included (the box that holds it).
std::int64_t elements(const Einsum& einsum, const Tensor& tensor);

/// Elements that the computation touches; `elements` less the holes.
std::int64_t touched_elements(const Einsum& einsum, const Tensor& tensor);

/// Every touched element of every tensor moved once, in bytes: no schedule moves less.
double algorithmic_minimum(const Einsum& einsum);

/// Whether index `rank` occurs in `tensor`.
bool relevant(const Tensor& tensor, int rank);

/// Bytes of one element of a multiplication's three tensors.
struct Bytes {
  double store = 1;
  double buffer = 1;
  double code = 0;  ///< as Tensor::code_bytes
};
struct MatmulBytes {
  Bytes a, w, c;
};

/// c[m, n] = sum_k a[m, k] w[n, k]. Ranks M, N, K; tensors a, w, c.
Einsum matmul(std::int64_t m, std::int64_t n, std::int64_t k, const MatmulBytes& bytes = {});

/// `heads` independent matmuls. Ranks H, M, N, K.
Einsum batched_matmul(std::int64_t heads, std::int64_t m, std::int64_t n, std::int64_t k,
                      const MatmulBytes& bytes = {});

/// `heads` matmuls of which each group of heads / groups shares one w: grouped-query attention;
/// `groups` = 1 is multi-query. Ranks G, R (heads of a group), M, N, K.
Einsum grouped_matmul(std::int64_t heads, std::int64_t groups, std::int64_t m, std::int64_t n,
                      std::int64_t k, const MatmulBytes& bytes = {});

/// A convolution by its output size; the input has (height - 1) * stride + (kernel_height - 1) *
/// dilation + 1 rows, padding included.
struct Conv2d {
  std::int64_t batch = 1, in_channels = 1, out_channels = 1;
  std::int64_t height = 1, width = 1;  ///< of the output
  std::int64_t kernel_height = 1, kernel_width = 1;
  std::int64_t stride = 1, dilation = 1;
};

/// Ranks K (out channels), C (in channels), P, Q, R, S and, unless 1, B; tensors i, w, o.
Einsum conv2d(const Conv2d& conv, const MatmulBytes& bytes = {});

/// The same along `width` only. Ranks K, C, Q, S and, unless 1, B.
Einsum conv1d(const Conv2d& conv, const MatmulBytes& bytes = {});

}  // namespace ladder::bounds
