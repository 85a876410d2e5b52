// SPDX-License-Identifier: Apache-2.0
// Written here because nothing else that ladder links has a keyed hash: xxhash is none (whoever
// knows its output for one message can make it for others), and libcrypto would be a new library
// that a wheel has to find. tests/core/base/hmac_test.cpp has the vectors of NIST and RFC 4231.
#include "base/hmac.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ladder {
namespace {

constexpr std::size_t kBlock = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

class Hash {
 public:
  void add(std::string_view bytes) {
    length_ += bytes.size();
    while (!bytes.empty()) {
      const std::size_t taken = std::min(bytes.size(), kBlock - filled_);
      std::memcpy(block_ + filled_, bytes.data(), taken);
      bytes.remove_prefix(taken);
      filled_ += taken;
      if (filled_ == kBlock) mix();
    }
  }

  Sha256 finish() {
    const std::uint64_t bits = 8 * length_;
    add(std::string_view("\x80", 1));
    while (filled_ != kBlock - 8) add(std::string_view("\0", 1));
    char end[8];
    for (int i = 0; i < 8; ++i) end[i] = static_cast<char>(bits >> (56 - 8 * i));
    add({end, 8});
    Sha256 out;
    for (int i = 0; i < 32; ++i) {
      out[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return out;
  }

 private:
  void mix() {
    std::uint32_t w[64];
    for (int t = 0; t < 16; ++t) {
      w[t] = std::uint32_t{block_[4 * t]} << 24 | std::uint32_t{block_[4 * t + 1]} << 16 |
             std::uint32_t{block_[4 * t + 2]} << 8 | std::uint32_t{block_[4 * t + 3]};
    }
    for (int t = 16; t < 64; ++t) {
      const std::uint32_t x = w[t - 15], y = w[t - 2];
      w[t] = w[t - 16] + w[t - 7] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3)) +
             (std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10));
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (int t = 0; t < 64; ++t) {
      const std::uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                  ((e & f) ^ (~e & g)) + kRound[t] + w[t];
      const std::uint32_t second =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const std::uint32_t mixed[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state_[i] += mixed[i];
    filled_ = 0;
  }

  // The same of the square roots of the first 8 primes.
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::uint8_t block_[kBlock];
  std::size_t filled_ = 0;
  std::uint64_t length_ = 0;  // bytes
};

std::string_view as_text(const Sha256& hash) {
  return {reinterpret_cast<const char*>(hash.data()), hash.size()};
}

}  // namespace

Sha256 sha256(std::string_view bytes) {
  Hash hash;
  hash.add(bytes);
  return hash.finish();
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::array<char, kBlock> inner{}, outer;
  const Sha256 short_key = sha256(key);
  if (key.size() > kBlock) key = as_text(short_key);
  std::memcpy(inner.data(), key.data(), key.size());
  for (std::size_t i = 0; i < kBlock; ++i) {
    outer[i] = static_cast<char>(inner[i] ^ 0x5c);
    inner[i] = static_cast<char>(inner[i] ^ 0x36);
  }
  Hash first, second;
  first.add({inner.data(), kBlock});
  first.add(message);
  second.add({outer.data(), kBlock});
  second.add(as_text(first.finish()));
  std::string text;
  for (const std::uint8_t byte : second.finish()) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() != b.size();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace ladder
