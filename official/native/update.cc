#include "update.h"

#include <cmath>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace bert {
namespace {

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

inline float lamb_update(const Numbers& n, float w, float m, float v) {
  return m * n.m_correction / (std::sqrt(v * n.v_correction) + n.epsilon) + n.weight_decay * w;
}

inline float square(float value) { return value * value; }

inline float square(BFloat16 value) { return square(to_float(value)); }

// Four sums side by side: one alone would wait for each of its additions, and memory gives more to who reads in four
// places.
template <typename T>
double sum_of_four(const T* numbers, int64_t count) {
  const int64_t quarter = count / 4;
  const T *second = numbers + quarter, *third = second + quarter, *fourth = third + quarter;
  float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < quarter; ++i) {
    a += square(numbers[i]);
    b += square(second[i]);
    c += square(third[i]);
    d += square(fourth[i]);
  }
  for (int64_t i = 4 * quarter; i < count; ++i) a += square(numbers[i]);
  return static_cast<double>(a) + b + (static_cast<double>(c) + d);
}

}  // namespace

void widen(const BFloat16* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

void narrow(const float* from, int64_t count, BFloat16* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(from[i], to + i);
}

void widen(const Half* from, int64_t count, float* to) {
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
#endif
  for (; i < count; ++i) to[i] = widen_one(from[i]);
}

void narrow(const float* from, int64_t count, Half* to) {
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
#endif
  for (; i < count; ++i) to[i] = narrow_one(from[i]);
}

void adam(const Numbers& n, const float* gradient, int64_t count, Run w, Run m, Run v, float kept) {
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

void lamb_moments(
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

void lamb_weights(const Numbers& n, int64_t count, Run w, const float* m, const float* v, float step) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) w.out[i] = w.in[i] - step * lamb_update(n, w.in[i], m[i], v[i]);
}

double sum_of_squares(const float* numbers, int64_t count) { return sum_of_four(numbers, count); }

double sum_of_squares(const BFloat16* numbers, int64_t count) { return sum_of_four(numbers, count); }

double sum_of_squares(const Half* numbers, int64_t count) {
  alignas(64) float space[kTile];
  double sum = 0;
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t part = count - at < kTile ? count - at : kTile;
    widen(numbers + at, part, space);
    sum += sum_of_four(space, part);
  }
  return sum;
}

}  // namespace bert
