// SPDX-License-Identifier: Apache-2.0
//
// Types of every kind that a schedule and its program look different for. Internal to the tests.
#pragma once

namespace ladder::testing {

constexpr const char* kKindsOfTypes[] = {
    "uint1,group=32,scale=e8m0",
    "uint2,channel",
    "int2,group=64,scale=float32",
    "ternary,group=128,scale=float16",
    "uint2,group=16,scale=float16",
    "uint1,group=64,scale=bfloat16,zero=integer",
    "uint3,group=128,scale=float16",
    "uint2,group=64,scale=float32,zero=rescale",
    "uint5,channel,scale=float16",
    "uint4,group=16,zero=integer",
    "int4,group=32,scale=bfloat16,zero=original",
    "nf4",
    "mxfp4",
    "nvfp4",
    "float6_e3m2,group=32,scale=e8m0",
    "float8_e5m2,channel,scale=float32",
    "int8",
    "uint7,group=64,scale=float16",
    "uint4,group=32,scale=uint4,zero=midpoint,scale2=float32:channel",
    "uint2,group=64,scale=uint4,zero=rescale,scale2=float16:128",
    "uint3,group=128,scale=int6,zero=midpoint,scale2=float16:128",
    "nf4,group=64,scale=int8,scale2=float32:128",
    "uint4,group=64,scale=uint6,zero=integer,scale2=bfloat16:64",
};

/// Scales in two levels, of which codes have the first as bytes beside x of int8.
constexpr const char* kIntegerScales =
    "uint4,group=128,scale=uint4,zero=midpoint,scale2=float32:channel";

/// Those of integers by whose bytes tiles multiply activations of 8 bits.
constexpr const char* kIntegersOfBytes[] = {
    "uint1,group=64,scale=float16",
    "int1,channel",
    "uint2,group=32,scale=float32",
    "int2,group=64",
    "ternary,group=128,scale=float16",
    "uint3,group=128,scale=float16",
    "uint4,channel,scale=float16",
    "int4,group=32,scale=bfloat16",
    "uint4,group=128,scale=float16,zero=integer",
    "uint3,group=64,scale=float32,zero=rescale",
    "uint5,channel,scale=float16",
    "int6,group=128",
    "uint7,group=64,scale=float16",
    "int8,channel",
    "uint8,group=128,scale=float16",
    "uint8,group=128,zero=integer",
    kIntegerScales,
    "uint3,group=32,scale=uint4,scale2=float32:channel",
    "ternary,group=64,scale=uint6,scale2=float32",
    "uint4,group=64,scale=uint8,zero=midpoint,scale2=float32",
    "uint4,group=128,scale=uint2,zero=integer,scale2=float32:channel",
    "uint3,group=64,scale=uint6,zero=rescale,scale2=float16:64",
    "uint6,group=128,scale=int8,zero=midpoint,scale2=float16:128",
};

/// Floats that e4m3 holds.
constexpr const char* kFloatsOfBytes[] = {
    "mxfp4",
    "float8_e4m3,channel",
    "float8_e4m3,group=128,scale=float32",
    "float6_e3m2,group=64,scale=float16",
    "float6_e2m3,channel,scale=float16",
    "float4_e2m1,group=256,scale=float16",
    "float3_e1m1,group=128,scale=float16",
};

/// Integers that are no more than 16 from their zero points, which e4m3 holds.
constexpr const char* kWholesOfBytes[] = {
    "uint1,group=64,scale=float16",
    "int1,channel",
    "uint2,group=32,scale=float32",
    "ternary,group=128,scale=float16",
    "uint3,group=64,scale=float16,zero=integer",
    "uint4,channel,scale=float16",
    "uint4,group=128,scale=float16",
    "uint4,group=128,scale=float16,zero=midpoint",
    "int4,group=32,scale=bfloat16",
    "int4,group=256,scale=float16",
    "uint4,group=64,scale=e8m0,zero=midpoint",
    "uint4,group=128,scale=float16,zero=integer",
    "uint4,channel,zero=integer",
    "int5,group=128,scale=float16",
    "uint4,group=128,scale=int6,zero=midpoint,scale2=float16:128",
};

}  // namespace ladder::testing
