// SPDX-License-Identifier: Apache-2.0
//
// Every kind of type that weights are quantised to. Internal to the tests.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "types/element.h"
#include "types/ttype.h"

namespace ladder::testing {

/// Tables that a user might register, few values and many, out of order.
inline void register_user_tables() {
  std::vector<double> few, many;
  for (int i = 0; i < 16; ++i) few.push_back((i - 7) * std::pow(std::abs(i - 7), 1.3));
  for (int i = 0; i < 256; ++i)
    many.push_back(i == 0 ? 0 : (i % 2 == 0 ? 1 : -1) * std::pow(1.05, i));
  register_table("user_few", 4, few);
  register_table("user_many", 8, many);
}

/// Every element of at most 8 bits with `group` (",group=16") and float16 scales, the named block
/// types, all kinds of zero points and formats of scales, and blocks of other shapes.
inline std::vector<std::string> quantizable(const std::string& group) {
  register_user_tables();
  std::vector<std::string> types;
  for (const Element* e : elements())
    if (e->bits <= 8 && e->encoding != Encoding::exponent)
      types.push_back(std::string(e->name) + group + ",scale=float16");
  for (const NamedTType& named : named_ttypes()) {
    // ladder.quantize searches scales of superblocks.
    if (ttype(named.name).superblock == 0) types.emplace_back(named.name);
  }
  for (const char* zero : {"midpoint", "integer", "quantized", "original", "rescale"})
    for (const char* bits : {"1", "3", "4", "8"})
      types.push_back("uint" + std::string(bits) + group + ",scale=float32,zero=" + zero);
  for (const char* scale : {"bfloat16", "float32", "e8m0", "float8_e4m3", "float8_e5m2"})
    for (const char* element : {"int4", "nf4", "float6_e3m2"})
      types.push_back(element + group + ",scale=" + scale);
  for (const char* type : {"int4,group=32,scale=float16,zero=original",
                           "int4,group=32,scale=bfloat16,zero=rescale",
                           "uint4,group=16,scale=float8_e4m3,zero=integer,scale2=float32",
                           "uint4,group=16,scale=float8_e4m3,zero=midpoint,scale2=float32",
                           "int8,channel,scale=float16,scale2=float32",
                           "nf4,group=16,scale=bfloat16,scale2=float32",
                           "int4,group=16,scale=float32,scale2=float32",
                           "int4,group=16,scale=e8m0,scale2=float32",
                           "float8_e4m3,block=3x16,scale=float32",
                           "int4,tensor,scale=float16",
                           "nf4,channel",
                           "uint4,zero=midpoint",
                           "int8",
                           "int3,group=9,scale=float16",
                           "uint4,group=300,scale=float16,zero=integer",
                           "nf4,channel,scale=float32",
                           "mxint8",
                           "user_many,block=128x128,scale=e8m0",
                           "uint4,group=16,scale=uint4,zero=midpoint,scale2=float32:channel",
                           "uint3,group=16,scale=uint8,zero=midpoint,scale2=float32",
                           "int8,channel,scale=float16,scale2=float32:channel",
                           "uint4,group=300,scale=uint5,zero=integer,scale2=float32:channel",
                           "nf4,group=16,scale=float8_e4m3,scale2=float32:channel"})
    types.emplace_back(type);
  return types;
}

}  // namespace ladder::testing
