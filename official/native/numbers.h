// The types of numbers that operations of our own read and write, and their bits. Nothing of TensorFlow, whose
// headers do not take all instructions of all CPUs.

#pragma once

#include <cstdint>
#include <cstring>

namespace bert {

struct BFloat16 {
  uint16_t bits;
};

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float to_float(float value) { return value; }

inline float to_float(BFloat16 value) { return bits_to_float(static_cast<uint32_t>(value.bits) << 16); }

inline void store(float value, float* to) { *to = value; }

// Rounds to the nearest, ties to even, as TensorFlow's Cast does.
inline void store(float value, BFloat16* to) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to->bits = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

// Returns a number as T holds it.
template <typename T>
inline float rounded(float value) {
  T number;
  store(value, &number);
  return to_float(number);
}

}  // namespace bert
