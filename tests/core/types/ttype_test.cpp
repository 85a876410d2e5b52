// SPDX-License-Identifier: Apache-2.0
#include "types/ttype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

auto refused(const std::string& part, const std::string& other = "") {
  return ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(part), HasSubstr(other)));
}

std::string respelled(std::string_view text) { return to_string(parse_ttype(text)); }

TEST(Spelling, of_every_combination_that_is_allowed_reads_back_to_the_same_type) {
  int allowed = 0;
  for (const Element* e : elements())
    for (const char* block : {"", ",group=8", ",group=128", ",channel", ",tensor", ",block=128x64"})
      for (const char* scale : {"", ",scale=float16", ",scale=e8m0", ",scale=float8_e4m3",
                                ",scale=uint4", ",scale=int6"})
        for (const char* zero : {"", ",zero=midpoint", ",zero=integer", ",zero=quantized",
                                 ",zero=original", ",zero=rescale"})
          for (const char* scale2 :
               {"", ",scale2=float32", ",scale2=float32:channel", ",scale2=float16:256"}) {
            const std::string text = std::string(e->name) + block + scale + zero + scale2;
            TType type;
            try {
              type = parse_ttype(text);
            } catch (const InvalidArgument&) {
              continue;
            }
            ++allowed;
            ASSERT_EQ(parse_ttype(to_string(type)), type) << text;
            ASSERT_EQ(respelled(to_string(type)), to_string(type)) << text;
          }
  EXPECT_GT(allowed, 2000);
}

TEST(Spelling, has_defaults_and_synonyms_that_come_out_as_one) {
  EXPECT_EQ(respelled("uint4"), "uint4");
  EXPECT_EQ(respelled("uint4,channel"), "uint4");
  EXPECT_EQ(respelled("uint4,group=channel"), "uint4");
  EXPECT_EQ(respelled("uint4,group=tensor,scale=fp16"), "uint4,tensor,scale=float16");
  EXPECT_EQ(respelled("uint4,zero=none,scale=none"), "uint4");
  EXPECT_EQ(respelled("uint4,scale=float16,scale2=float32:tensor"),
            "uint4,scale=float16,scale2=float32");
  EXPECT_EQ(respelled("uint4,scale2=float32:channel,scale=uint4"),
            "uint4,scale=uint4,scale2=float32:channel");
  EXPECT_EQ(respelled("uint4,scale2=bf16:0128,scale=int6,group=32"),
            "uint4,group=32,scale=int6,scale2=bfloat16:128");
  EXPECT_EQ(respelled("uint4,scale=float16,group=64"), "uint4,group=64,scale=float16");
  EXPECT_EQ(respelled("uint4,block=1x64,scale=float16"), "uint4,group=64,scale=float16");
  EXPECT_EQ(respelled("e4m3_float8,block=128x128,scale=float32"),
            "float8_e4m3,block=128x128,scale=float32");
}

TEST(Spelling, of_a_block_type_is_its_name_also_when_written_out) {
  for (const NamedTType& named : named_ttypes()) {
    EXPECT_EQ(respelled(named.name), named.name);
    EXPECT_EQ(respelled(named.spelling), named.name);
    EXPECT_EQ(parse_ttype(named.name), parse_ttype(named.spelling));
  }
}

TEST(BlockTypes, are_what_their_specifications_say) {
  for (const char* name :
       {"mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8"}) {
    const TType type = parse_ttype(name);
    EXPECT_EQ(type.block, (Block{1, 32})) << name;
    EXPECT_EQ(type.scale, &element("e8m0")) << name;
  }
  const TType nvfp4 = parse_ttype("nvfp4");
  EXPECT_EQ(nvfp4.block, (Block{1, 16}));
  EXPECT_EQ(nvfp4.scale, &element("float8_e4m3"));
  EXPECT_EQ(nvfp4.scale2, &element("float32"));
  EXPECT_EQ(nvfp4.element, &element("float4_e2m1"));
  const TType q4_k = parse_ttype("q4_k");
  EXPECT_EQ(q4_k.block, (Block{1, 32}));
  EXPECT_EQ(q4_k.superblock, 256);
  EXPECT_EQ(q4_k.scales_of_superblock(), 2);
  EXPECT_FALSE(q4_k.has_integer_scales() || q4_k.has_scale_of_sums());
  EXPECT_EQ(q4_k.second_scales_of_row(257), 4);
  EXPECT_EQ(q4_k.bits_per_weight(8, 256), 4.625);
  EXPECT_EQ(parse_ttype("q6_k").bits_per_weight(8, 256), 6.5625);
}

TEST(Spelling, that_is_wrong_is_refused_with_the_field_at_fault) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "unknown type \"\""},
      {"uint9", "unknown type \"uint9\""},
      {"uint4,group=0", "group is \"0\" in type \"uint4,group=0\", not a positive integer"},
      {"uint4,group=-8", "group is \"-8\""},
      {"uint4,group=12x", "group is \"12x\""},
      {"uint4,group=99999999999999999999", "group is \"99999999999999999999\""},
      {"uint4,group=", "group is \"\""},
      {"uint4,group=4", "has groups of 4, fewer than 8"},
      {"uint4,block=128", "block is \"128\" in type \"uint4,block=128\", not ROWSxCOLUMNS"},
      {"uint4,block=0x128", "block is \"0\""},
      {"uint4,block=128x4", "groups of 4, fewer than 8"},
      {"uint4,scale=float61", "unknown type \"float61\""},
      {"uint4,scale=int8", "scale int8 is neither a floating format nor an unsigned integer"},
      {"uint4,scale=uint8", "scales of uint8, which are integers, and no scale2"},
      {"uint4,scale=float16,scale2=float32:row", "scale2 is \"float32:row\" in type"},
      {"uint4,block=8x128,scale=float16,scale2=float32:channel",
       "has a scale2 of each row, and scales that rows share"},
      {"uint4,scale=float6_e3m2", "scale float6_e3m2 has 6 bits, not 8, 16 or 32"},
      {"uint4,scale=float16,scale2=float16", "scale2 is float16, not float32"},
      {"uint4,group=32,scale=uint6,scale2=float16:0", "scale2 is \"0\" in type"},
      {"uint4,group=32,scale=uint6,scale2=float16:100",
       "superblocks of 100 columns, which are no whole groups of 32"},
      {"uint4,group=12,scale=uint6,scale2=float16:36", "36 columns, no multiple of 8"},
      {"uint4,scale=uint6,scale2=float16:256", "and one scale for a whole row"},
      {"uint4,block=8x32,scale=uint6,scale2=float16:256", "scales that rows share"},
      {"uint4,group=32,scale=float16,scale2=float16:256",
       "whose scales are integers of up to 8 bits, and its scale is float16"},
      {"uint4,group=32,scale2=float16:256", "and its scale is none"},
      {"uint4,group=32,scale=uint6,scale2=float8_e4m3:256",
       "scale2 of superblocks is float8_e4m3, not a float of 16 or 32 bits"},
      {"uint4,group=32,scale=uint6,zero=original,scale2=float16:256",
       "a float zero needs a scale of 16 or 32 bits"},
      {"uint4,scale2=float32", "has a scale2 but no scale"},
      {"uint4,zero=maybe", "zero is \"maybe\" in type \"uint4,zero=maybe\", not none, midpoint"},
      {"int4,zero=integer", "zero integer needs an unsigned integer, and int4 is none"},
      {"nf4,zero=midpoint", "zero midpoint needs an unsigned integer, and nf4 is none"},
      {"float4_e2m1,scale=float16,zero=original",
       "zero original needs an integer format, and float4_e2m1 is none"},
      {"uint4,zero=original", "needs a scale of 16 or 32 bits, and the scale is none"},
      {"uint4,scale=e8m0,zero=rescale", "needs a scale of 16 or 32 bits, and the scale is e8m0"},
      {"uint4,grouped=8", "field \"grouped=8\" of type \"uint4,grouped=8\" is not group=, block="},
      {"uint4,", "field \"\" of type \"uint4,\""},
      {"uint4,,group=8", "field \"\""},
      {"uint4,group=64,group=128", "field \"group=128\" of type \"uint4,group=64,group=128\""},
      {"uint4,group=64,tensor", "field \"tensor\""},
      {"uint4,scale=float16,scale=float32", "field \"scale=float32\""},
      {"mxfp4,group=16", "mxfp4 fixes every field, so none may follow it"},
      {"e8m0", "e8m0 is a scale format, not an element format"},
  };
  for (const auto& [text, message] : wrong)
    EXPECT_THAT([t = text] { parse_ttype(t); }, refused(message)) << text;
}

TEST(Groups, count_a_shorter_last_one) {
  const TType type = parse_ttype("uint4,group=32,scale=float16");
  EXPECT_EQ(type.groups(32), 1);
  EXPECT_EQ(type.groups(33), 2);
  EXPECT_EQ(parse_ttype("uint4,scale=float16").groups(33), 1);
  const TType blocks = parse_ttype("uint4,block=16x32,scale=float16");
  EXPECT_EQ(blocks.block_rows(17), 2);
  EXPECT_EQ(parse_ttype("uint4,tensor,scale=float16").block_rows(17), 1);
}

TEST(BitsPerWeight, are_the_bits_of_the_codes_and_their_share_of_the_metadata) {
  const auto bits = [](std::string_view text) {
    return parse_ttype(text).bits_per_weight(4096, 4096);
  };
  EXPECT_EQ(bits("uint4"), 4);
  EXPECT_EQ(bits("uint4,group=128,scale=float16,zero=midpoint"), 4 + 16.0 / 128);
  EXPECT_EQ(bits("uint4,group=128,scale=float16,zero=integer"), 4 + 24.0 / 128);
  EXPECT_EQ(bits("uint4,group=128,scale=float16,zero=quantized"), 4 + 20.0 / 128);
  EXPECT_EQ(bits("uint4,group=128,scale=float16,zero=original"), 4 + 32.0 / 128);
  EXPECT_EQ(bits("mxfp4"), 4.25);
  EXPECT_EQ(bits("nvfp4"), 4.5);
  EXPECT_EQ(bits("float8_e4m3,block=128x128,scale=float32"), 8 + 32.0 / 16384);
}

TEST(ParsedOnce, equal_texts_give_the_same_object) {
  EXPECT_EQ(&ttype("uint3,group=64,scale=float16"), &ttype("uint3,group=64,scale=float16"));
  EXPECT_THAT([] { ttype("nonsense"); }, refused("unknown type"));
}

}  // namespace
}  // namespace ladder
