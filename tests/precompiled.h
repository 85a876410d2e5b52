// SPDX-License-Identifier: Apache-2.0
//
// What most C++ tests include of other libraries, compiled once. A test includes what it uses all
// the same: `make sanitize` compiles without this header.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>
