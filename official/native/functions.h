// Functions of single numbers that loops compile into vector code.

#pragma once

#include "blocks.h"

namespace bert {

// exp(x) of x up to 88, to two units in the last place; 0 where it is less than the normal numbers.
// Source: S. Moshier, Cephes, expf.
inline float exponential(float x) {
  // The last bits of the sum are those of the nearest whole number.
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float whole = shifted - 12582912.0f;
  const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float sum = 1.9875691500e-4f;
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * (rest * rest) + rest + 1.0f;
  const float power = bits_to_float((float_to_bits(shifted) << 23) + 0x3f800000);
  return x < -87.3f ? 0.0f : sum * power;
}

// The 32-bit hash "lowbias32", as in official/modeling/layers.py.
inline uint32_t mixed(uint32_t word) {
  word = (word ^ word >> 16) * 0x21f0aaadu;
  word = (word ^ word >> 15) * 0x735a2d97u;
  return word ^ word >> 15;
}

}  // namespace bert
