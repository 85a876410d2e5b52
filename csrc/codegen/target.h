// SPDX-License-Identifier: Apache-2.0
//
// A target is a language that kernels are written in, with the compiler and the driver that bring
// them onto its devices: a row of tables. Only the folders beside this file name one.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "codegen/driver.h"
#include "codegen/rounding_kernels.h"
#include "codegen/routing_kernels.h"
#include "codegen/toolchain.h"
#include "codegen/weight_kernels.h"
#include "device/device.h"
#include "program/program.h"

namespace ladder {

struct Target {
  std::string_view name;  ///< "CUDA"
  Family family;          ///< of the devices that it is for
  /// The kernel of a program, complete: its parameters the global buffers in order, then `unsigned
  /// tokens`. Equal programs give equal text on any machine. Null: none is written yet.
  std::string (*emit)(const Program& program);
  const ImageKernels* image;        ///< null: not written yet
  const QuantizeKernels* quantize;  ///< null: not written yet; weights are quantised on the CPU
  const RoutingKernels* routing;    ///< null: not written yet; experts are multiplied in turn
  const RoundingKernels* rounding;  ///< null: not written yet; activations come in 16 bits
  const Toolchain& toolchain;
  const Driver& driver;
};

/// All of them; the first has the devices of a machine that has no driver at all.
std::span<const Target> targets();
/// The one called so. Throws InvalidArgument listing the names.
const Target& target_called(std::string_view name);
/// The one for devices of `family`, whether or not it writes kernels for each of them. Throws
/// Unsupported where there is none.
const Target& target_of(Family family);

/// Why no target writes kernels for `device` yet; empty when one does.
std::string no_target(const Device& device);
/// The target that does. Throws Unsupported with no_target().
const Target& target_of(const Device& device);

/// Target::emit. Throws Unsupported where it writes none.
std::string emit(const Target& target, const Program& program);
/// Its kernels of images. Throws Unsupported where it has none.
const ImageKernels& image_kernels(const Target& target);
/// Its kernels that quantise. Throws Unsupported where it has none.
const QuantizeKernels& quantize_kernels(const Target& target);
/// Its kernels around the products of experts. Throws Unsupported where it has none.
const RoutingKernels& routing_kernels(const Target& target);
/// Its kernels that round activations. Throws Unsupported where it has none.
const RoundingKernels& rounding_kernels(const Target& target);

}  // namespace ladder
