// SPDX-License-Identifier: Apache-2.0
// Launches of many products by a stack of weights (runtime/expert_products.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "binding/torch/cuda.h"
#include "runtime/expert_products.h"

namespace ladder::binding {

/// Of one launch, whatever its kernel.
struct ItemsLaunch {
  Session& session;
  const Tensor& images;
  const std::optional<Tensor>& bias;
  const Tensor& x;
  const Tensor* scales;  ///< of the rows of x, where they are codes
  const Tensor& y;
  const Tensor* table;  ///< of experts
  std::int64_t count;   ///< of items
  std::int64_t
      tokens;  ///< that the kernel is told: of a batch rows of each product, of windows all
  std::int32_t ordinal;
  void* stream;
  const std::optional<Tensor>& residual;  ///< as y; there where the kernel adds one
};
/// As many as LinearKernel::start gives its kernel, for all items.
[[nodiscard]] bool launch(const LinearKernel& kernel, const ItemsLaunch& of);

/// What `items` says: "experts", "batch", or windows_from(). Throws InvalidArgument for others.
void set_items(ExpertProducts::Question& question, const std::string& items);

}  // namespace ladder::binding
