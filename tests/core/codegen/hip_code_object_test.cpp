// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "codegen/hip/code_object.h"
#include "fakes/code_object.h"

namespace ladder::hip {
namespace {

using fake::array_of;
using fake::code_object;
using fake::map_of;
using fake::packed;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(CodeObject, says_what_its_kernels_take) {
  const std::string bytes =
      code_object(fake::metadata_of({{.name = "first"},
                                     {.name = "a name of more than thirty-one characters",
                                      .vgprs = 512,
                                      .agprs = 256,
                                      .sgprs = 102,
                                      .vgpr_spills = 203,
                                      .sgpr_spills = 3,
                                      .scratch_bytes = 640,
                                      .lds_bytes = 163840,
                                      .argument_bytes = 284,
                                      .threads = 1024}}));
  const auto kernels = kernels_of(bytes);
  ASSERT_EQ(kernels.size(), 2);
  EXPECT_EQ(kernels[0].name, "first");
  EXPECT_EQ(kernels[0].vgprs, 40);
  EXPECT_EQ(kernels[0].vgpr_spills, 0);
  const KernelResources& second = kernels[1];
  EXPECT_EQ(second.name, "a name of more than thirty-one characters");
  EXPECT_EQ(second.vgprs, 512);
  EXPECT_EQ(second.agprs, 256);
  EXPECT_EQ(second.sgprs, 102);
  EXPECT_EQ(second.vgpr_spills, 203);
  EXPECT_EQ(second.sgpr_spills, 3);
  EXPECT_EQ(second.scratch_bytes, 640);
  EXPECT_EQ(second.lds_bytes, 163840);
  EXPECT_EQ(second.argument_bytes, 284);
  EXPECT_EQ(second.most_threads, 1024);
}

// Every kind of value that MessagePack has, where nobody asks for it.
TEST(CodeObject, may_say_more) {
  using namespace std::string_literals;
  const std::vector<std::string> values = {"\xc0"s,
                                           "\xc2"s,
                                           "\xc3"s,
                                           "\xc4\x02xy"s,
                                           "\xc5\0\x01x"s,
                                           "\xc6\0\0\0\x01x"s,
                                           "\xca\0\0\0\0"s,
                                           "\xcb\0\0\0\0\0\0\0\0"s,
                                           "\xcc\xff"s,
                                           "\xce\0\0\0\x01"s,
                                           "\xd0\xff"s,
                                           "\xd1\xff\xff"s,
                                           "\xd2\xff\xff\xff\xff"s,
                                           "\xd3\xff\xff\xff\xff\xff\xff\xff\xff"s,
                                           "\xff"s,
                                           "\xda\0\x01x"s,
                                           "\xdb\0\0\0\x01x"s,
                                           "\xdd\0\0\0\x01\x05"s,
                                           "\xde\0\x01\xa1k\x05"s,
                                           "\xdf\0\0\0\x01\xa1k\x92\x01\x02"s};
  for (const auto& value : values) {
    const std::string kernel = map_of({{".odd", value}, {".vgpr_count", packed(77)}});
    const std::string all =
        map_of({{"odd", value}, {"amdhsa.kernels", array_of({kernel})}, {"more", value}});
    const auto kernels = kernels_of(code_object(all));
    ASSERT_EQ(kernels.size(), 1) << testing::PrintToString(value);
    EXPECT_EQ(kernels[0].vgprs, 77);
  }
}

TEST(CodeObject, is_refused_when_it_is_none) {
  EXPECT_THAT([] { kernels_of("a text"); },
              ThrowsMessage<ToolchainError>(HasSubstr("no ELF file")));
  EXPECT_THAT([] { kernels_of(code_object("\x91\x01")); },
              ThrowsMessage<ToolchainError>(HasSubstr("metadata is no map")));
  EXPECT_THAT([] { kernels_of(code_object("\x81\xc1")); },
              ThrowsMessage<ToolchainError>(HasSubstr("value of kind 193")));
  std::string none = code_object(fake::metadata_of({{}}));
  none.replace(none.find("AMDGPU"), 6, "AMDCPU");
  EXPECT_THAT([&] { kernels_of(none); },
              ThrowsMessage<ToolchainError>(HasSubstr("no metadata of kernels")));
}

// Whatever is missing of a file, what is read lies in it (under the address sanitizer).
TEST(CodeObject, that_was_cut_anywhere_is_refused) {
  const std::string whole = code_object(fake::metadata_of({{}, {}}));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::string cut = whole.substr(0, length);
    EXPECT_THROW(kernels_of(cut), ToolchainError) << length;
  }
  // Elements that are promised and not there.
  for (const char* promise : {"\x81\xae"
                              "amdhsa.kernels\xdd\x7f\xff\xff\xff",
                              "\xdf\xff\xff\xff\xff", "\x81\xa1k\xdd\xff\xff\xff\xff"}) {
    EXPECT_THROW(kernels_of(code_object(promise)), ToolchainError);
  }
}

}  // namespace
}  // namespace ladder::hip
