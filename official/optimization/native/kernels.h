// What becomes of a run of weights: plain loops over arrays that the compiler makes vector code of. Nothing of
// TensorFlow.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace bert {

// Numbers that are worked on at a time: with what is computed from them they stay in the first-level cache.
constexpr int64_t kTile = 1024;

// Adam's numbers, and those of a step. `factor`: of the gradients. A weight becomes
// kept * w - step_size * m / (sqrt(v) + epsilon_beside_root); with LAMB, one that decays
// w - rate * |w| / |u| * u of u = m_correction * m / (sqrt(v_correction * v) + epsilon) + weight_decay * w.
struct Numbers {
  float beta_1, beta_2, epsilon, weight_decay;
  float factor, step_size, kept, epsilon_beside_root;
  float rate, m_correction, v_correction;
};

// Where a run of numbers is read and where it is written: the same place, unless somebody else still reads it.
struct Run {
  const float* in;
  float* out;
};

// The sums of squares of weights and of their updates.
struct Squares {
  double weight = 0, update = 0;
};

struct BFloat16 {
  uint16_t bits;
};

struct Half {
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

inline void widen(const BFloat16* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = bits_to_float(static_cast<uint32_t>(from[i].bits) << 16);
}

// Rounds to the nearest, ties to even, as TensorFlow's Cast does.
inline void narrow(const float* from, int64_t count, BFloat16* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = float_to_bits(from[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to[i].bits = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
}

inline float widen_one(Half half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000) << 16, rest = half.bits & 0x7fff;
  if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // Below the normal numbers: a multiple of 2^-24.
  if (rest < 0x400) return bits_to_float(sign | float_to_bits(static_cast<float>(rest) * 0x1p-24f));
  return bits_to_float(sign | ((rest << 13) + (112u << 23)));
}

inline Half narrow_one(float value) {
  const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  uint32_t half;
  if (rest > 0x7f800000) {
    half = 0x7e00;
  } else if (rest >= 0x477ff000) {
    half = 0x7c00;
  } else if (rest < 0x38800000) {  // the sum is rounded to a multiple of 2^-24
    half = float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000;
  } else {
    half = (rest - (112u << 23) + 0xfff + ((rest >> 13) & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

inline void widen(const Half* from, int64_t count, float* to) {
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
#endif
  for (; i < count; ++i) to[i] = widen_one(from[i]);
}

inline void narrow(const float* from, int64_t count, Half* to) {
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
#endif
  for (; i < count; ++i) to[i] = narrow_one(from[i]);
}

// Returns a tile as float32: where it is, or in `space`.
inline const float* as_float(const float* from, int64_t, float*) { return from; }

template <typename T>
const float* as_float(const T* from, int64_t count, float* space) {
  widen(from, count, space);
  return space;
}

inline void adam(const Numbers& n, const float* gradient, int64_t count, Run w, Run m, Run v, float kept) {
  const float share_1 = 1 - n.beta_1, share_2 = 1 - n.beta_2;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * n.factor;
    const float new_m = m.in[i] + share_1 * (g - m.in[i]);
    const float new_v = v.in[i] + share_2 * (g * g - v.in[i]);
    m.out[i] = new_m;
    v.out[i] = new_v;
    w.out[i] = kept * w.in[i] - n.step_size * new_m / (std::sqrt(new_v) + n.epsilon_beside_root);
  }
}

inline float lamb_update(const Numbers& n, float w, float m, float v) {
  return m * n.m_correction / (std::sqrt(v * n.v_correction) + n.epsilon) + n.weight_decay * w;
}

// Updates the moments and adds up what LAMB's ratio is made of.
inline void lamb_moments(
    const Numbers& n, const float* gradient, int64_t count, const float* w, Run m, Run v, Squares* squares) {
  const float share_1 = 1 - n.beta_1, share_2 = 1 - n.beta_2;
  float weight = 0, update = 0;
#pragma omp simd reduction(+ : weight, update)
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * n.factor;
    const float new_m = m.in[i] + share_1 * (g - m.in[i]);
    const float new_v = v.in[i] + share_2 * (g * g - v.in[i]);
    m.out[i] = new_m;
    v.out[i] = new_v;
    const float u = lamb_update(n, w[i], new_m, new_v);
    weight += w[i] * w[i];
    update += u * u;
  }
  squares->weight += weight;
  squares->update += update;
}

// Updates the weights: what `lamb_moments` has added up is computed again, which moves no more memory than
// keeping it would. `step`: the learning rate times LAMB's ratio.
inline void lamb_weights(const Numbers& n, int64_t count, Run w, const float* m, const float* v, float step) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) w.out[i] = w.in[i] - step * lamb_update(n, w.in[i], m[i], v[i]);
}

inline double sum_of_squares(const float* numbers, int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += numbers[i] * numbers[i];
  return sum;
}

}  // namespace bert
