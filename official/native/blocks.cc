#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512")  // unasked, GCC takes half a register
#endif

#include "blocks.h"
#include "functions.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace bert {
namespace {

// The error function, to two units in the last place. Source: Eigen's generic_fast_erf_float.
inline float error_function(float x) {
  if (x > 3.8325068f) return 1.0f;
  if (x < -3.8325068f) return -1.0f;
  const float square = x * x;
  float above = 0.00022905065861350646f;
  above = above * square + 0.0034082910107109506f;
  above = above * square + 0.050955695062380861f;
  above = above * square + 0.18520832239976145f;
  above = above * square + 1.128379143519084f;
  float below = -1.1791602954361697e-7f;
  below = below * square + 0.000023547966471313185f;
  below = below * square + 0.0010179625278914885f;
  below = below * square + 0.014070470171167667f;
  below = below * square + 0.11098505178285362f;
  below = below * square + 0.49746925110067538f;
  below = below * square + 1.0f;
  return x * above / below;
}

// The activations of official/modeling/activations.py.
struct GeluTanh {
  // 0.5 (1 + tanh(u)) is 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
  static constexpr float kTwice = 1.5957691216057308f, kCubic = 0.044715f;

  static float negative_exponential(float x) {
    const float exponent = -kTwice * x * (1.0f + kCubic * x * x);
    return exponential(exponent > 87.0f ? 87.0f : exponent);
  }

  static float value(float x) { return x / (1.0f + negative_exponential(x)); }

  static float slope(float x) {
    const float negative = negative_exponential(x), share = 1.0f / (1.0f + negative);
    return share + x * (negative * share * share) * (kTwice * (1.0f + 3.0f * kCubic * x * x));
  }
};

struct GeluErf {
  static float distribution(float x) { return 0.5f * (1.0f + error_function(x * 0.70710678f)); }

  static float value(float x) { return x * distribution(x); }

  static float slope(float x) { return distribution(x) + x * exponential(-0.5f * x * x) * 0.39894228f; }
};

struct Relu {
  static float value(float x) { return x < 0.0f ? 0.0f : x; }

  static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

template <typename Shape, typename T>
void activate(const T* x, const float* bias, int64_t rows, int columns, T* y) {
  for (int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
#pragma omp simd
    for (int i = 0; i < columns; ++i) store(Shape::value(to_float(x[i]) + bias[i]), y + i);
  }
}

template <typename Shape, typename T>
void activate_gradient(
    const T* x, const float* bias, const T* upstream, int64_t rows, int columns, T* x_gradient, float* sums) {
  for (int64_t row = 0; row < rows; ++row, x += columns, upstream += columns, x_gradient += columns) {
#pragma omp simd
    for (int i = 0; i < columns; ++i) {
      const float gradient = to_float(upstream[i]) * Shape::slope(to_float(x[i]) + bias[i]);
      sums[i] += gradient;
      store(gradient, x_gradient + i);
    }
  }
}

template <typename Shape, typename T>
void gate(const T* x, int64_t rows, int columns, T* y) {
  for (int64_t row = 0; row < rows; ++row, x += 2 * columns, y += columns) {
#pragma omp simd
    for (int i = 0; i < columns; ++i) store(Shape::value(to_float(x[i])) * to_float(x[columns + i]), y + i);
  }
}

template <typename Shape, typename T>
void gate_gradient(const T* x, const T* upstream, int64_t rows, int columns, T* x_gradient, T* y) {
  for (int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (int i = 0; i < columns; ++i) {
      const float value = to_float(x[i]), gate = to_float(x[columns + i]), given = to_float(upstream[i]);
      const float activated = Shape::value(value);
      store(activated * gate, y + i);
      store(given * gate * Shape::slope(value), x_gradient + i);
      store(given * activated, x_gradient + columns + i);
    }
    x += 2 * columns, x_gradient += 2 * columns, upstream += columns, y += columns;
  }
}

// Dropout's hashes of a row; without dropout there are none.
template <bool kDrops>
struct RowDropout {
  uint32_t first, stride, dropped;
  float factor;

  RowDropout(const Dropout& dropout, uint32_t element)
      : first(dropout.first + element * dropout.stride),
        stride(dropout.stride),
        dropped(dropout.dropped),
        factor(dropout.factor) {}

  // Returns all bits where element i of the row is kept, else none: without a branch, for vector code.
  uint32_t mask_of(int i) const {
    if (!kDrops) return ~0u;
    return -static_cast<uint32_t>(mixed(first + static_cast<uint32_t>(i) * stride) >= dropped);
  }

  // What is dropped is 0, whatever it was.
  float masked(float value, uint32_t mask) const {
    if (!kDrops) return value;
    return bits_to_float(float_to_bits(value * factor) & mask);
  }
};

template <bool kDrops, typename T>
void normalize(const ResidualNorm<T>& in, int64_t row, T* y, Moments* moments, float* space) {
  const int columns = in.columns;
  const RowDropout<kDrops> drop(in.dropout, static_cast<uint32_t>(row * columns));
  const T *x = in.x + row * columns, *residual = in.residual + row * columns;
  const float *bias = in.bias, *gamma = in.gamma, *beta = in.beta;
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < columns; ++i) {
    const float value = drop.masked(to_float(x[i]) + bias[i], drop.mask_of(i)) + to_float(residual[i]);
    space[i] = value;
    sum += value;
  }
  const float mean = sum / columns;
#pragma omp simd reduction(+ : squares)
  for (int i = 0; i < columns; ++i) squares += (space[i] - mean) * (space[i] - mean);
  const float scale = 1.0f / std::sqrt(squares / columns + in.epsilon);
  y += row * columns;
#pragma omp simd
  for (int i = 0; i < columns; ++i) store((space[i] - mean) * scale * gamma[i] + beta[i], y + i);
  moments[row] = {mean, scale};
}

template <bool kDrops, typename T>
void normalize_gradient(
    const ResidualNorm<T>& in, int64_t row, const T* upstream, Moments moments, T* x_gradient, T* residual_gradient,
    float* sums, float* space) {
  const int columns = in.columns;
  const RowDropout<kDrops> drop(in.dropout, static_cast<uint32_t>(row * columns));
  const T *x = in.x + row * columns, *residual = in.residual + row * columns;
  const float *bias = in.bias, *gamma = in.gamma;
  float *bias_sums = sums, *gamma_sums = sums + columns, *beta_sums = sums + 2 * columns;
  float *normals = space, *slopes = space + columns;
  const float mean = moments.mean, scale = moments.scale;
  upstream += row * columns;
  float sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
  for (int i = 0; i < columns; ++i) {
    const float value = drop.masked(to_float(x[i]) + bias[i], drop.mask_of(i)) + to_float(residual[i]);
    const float normal = (value - mean) * scale, given = to_float(upstream[i]), slope = given * gamma[i];
    gamma_sums[i] += given * normal;
    beta_sums[i] += given;
    sum += slope;
    along += slope * normal;
    normals[i] = normal;
    slopes[i] = slope;
  }
  const float sum_share = sum / columns, along_share = along / columns;
  x_gradient += row * columns;
  residual_gradient += row * columns;
#pragma omp simd
  for (int i = 0; i < columns; ++i) {
    const float gradient = scale * (slopes[i] - sum_share - normals[i] * along_share);
    const float kept = drop.masked(gradient, drop.mask_of(i));
    bias_sums[i] += kept;
    store(gradient, residual_gradient + i);
    store(kept, x_gradient + i);
  }
}

template <bool kDrops, typename T>
Shares weigh(
    const T* products, const float* mask, float scale, int columns, const RowDropout<kDrops>& drop, T* weights,
    float* space) {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < columns; ++i) {
    const float score = to_float(products[i]) * scale + mask[i];
    space[i] = score;
    largest = score > largest ? score : largest;
  }
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < columns; ++i) {
    space[i] = exponential(space[i] - largest);
    sum += space[i];
  }
  const float inverse_sum = 1.0f / sum;
#pragma omp simd
  for (int i = 0; i < columns; ++i) store(drop.masked(space[i] * inverse_sum, drop.mask_of(i)), weights + i);
  return {largest, inverse_sum};
}

template <bool kDrops, typename T>
void weigh_gradient(
    const T* products, const float* mask, float scale, int columns, const RowDropout<kDrops>& drop, Shares shares,
    const T* upstream, T* gradient, float* space) {
  float *weights = space, *slopes = space + columns, along = 0;
  const float largest = shares.largest, inverse_sum = shares.inverse_sum;
#pragma omp simd reduction(+ : along)
  for (int i = 0; i < columns; ++i) {
    const float weight = exponential(to_float(products[i]) * scale + mask[i] - largest) * inverse_sum;
    const float slope = drop.masked(to_float(upstream[i]), drop.mask_of(i));
    along += weight * slope;
    weights[i] = weight;
    slopes[i] = slope;
  }
#pragma omp simd
  for (int i = 0; i < columns; ++i) store((slopes[i] - along) * weights[i] * scale, gradient + i);
}

}  // namespace

template <typename T>
void ResidualNorm<T>::forward(int64_t begin, int64_t end, T* y, Moments* moments, float* space) const {
  const auto one = dropout.dropped ? normalize<true, T> : normalize<false, T>;
  for (int64_t row = begin; row < end; ++row) one(*this, row, y, moments, space);
}

template <typename T>
void ResidualNorm<T>::backward(
    int64_t begin, int64_t end, const T* upstream, const Moments* moments, T* x_gradient, T* residual_gradient,
    float* sums, float* space) const {
  const auto one = dropout.dropped ? normalize_gradient<true, T> : normalize_gradient<false, T>;
  for (int64_t row = begin; row < end; ++row)
    one(*this, row, upstream, moments[row], x_gradient, residual_gradient, sums, space);
}

template <typename T>
void PreNorm<T>::forward(int64_t begin, int64_t end, T* total, T* y, Moments* moments, float* space) const {
  // Else each number that is read reads its member anew, since what is written could be that.
  const T *const x = this->x, *const residual = this->residual;
  const float* const gamma = this->gamma;
  const int columns = this->columns;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * columns;
    float sum = 0, squares = 0;
    if (residual == nullptr) {
#pragma omp simd reduction(+ : sum)
      for (int i = 0; i < columns; ++i) {
        space[i] = to_float(x[at + i]);
        sum += space[i];
      }
    } else {
#pragma omp simd reduction(+ : sum)
      for (int i = 0; i < columns; ++i) {
        space[i] = rounded<T>(to_float(x[at + i]) + to_float(residual[at + i]));
        store(space[i], total + at + i);
        sum += space[i];
      }
    }
    const float mean = sum / columns;
#pragma omp simd reduction(+ : squares)
    for (int i = 0; i < columns; ++i) squares += (space[i] - mean) * (space[i] - mean);
    const float scale = 1.0f / std::sqrt(squares / columns + epsilon);
#pragma omp simd
    for (int i = 0; i < columns; ++i) store((space[i] - mean) * scale * gamma[i], y + at + i);
    moments[row] = {mean, scale};
  }
}

template <typename T>
void PreNorm<T>::backward(
    int64_t begin, int64_t end, const T* upstream, const T* added, const Moments* moments, T* x_gradient, T* y,
    float* sums, float* space) const {
  const T* const x = this->x;
  const float* const gamma = this->gamma;
  const int columns = this->columns;
  float *normals = space, *slopes = space + columns;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * columns;
    const float mean = moments[row].mean, scale = moments[row].scale;
    float sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
    for (int i = 0; i < columns; ++i) {
      const float normal = (to_float(x[at + i]) - mean) * scale, given = to_float(upstream[at + i]);
      const float slope = given * gamma[i];
      sums[i] += given * normal;
      sum += slope;
      along += slope * normal;
      normals[i] = normal;
      slopes[i] = slope;
    }
    const float sum_share = sum / columns, along_share = along / columns;
    if (y != nullptr) {
#pragma omp simd
      for (int i = 0; i < columns; ++i) store(normals[i] * gamma[i], y + at + i);
    }
    if (added == nullptr) {
#pragma omp simd
      for (int i = 0; i < columns; ++i)
        store(scale * (slopes[i] - sum_share - normals[i] * along_share), x_gradient + at + i);
    } else {
#pragma omp simd
      for (int i = 0; i < columns; ++i)
        store(
            scale * (slopes[i] - sum_share - normals[i] * along_share) + to_float(added[at + i]), x_gradient + at + i);
    }
  }
}

template <typename T>
void gated_activation(Activation kind, const T* x, int64_t rows, int columns, T* y) {
  const auto all = kind == Activation::kGeluTanh  ? gate<GeluTanh, T>
                   : kind == Activation::kGeluErf ? gate<GeluErf, T>
                                                  : gate<Relu, T>;
  all(x, rows, columns, y);
}

template <typename T>
void gated_activation_gradient(
    Activation kind, const T* x, const T* upstream, int64_t rows, int columns, T* x_gradient, T* y) {
  const auto all = kind == Activation::kGeluTanh  ? gate_gradient<GeluTanh, T>
                   : kind == Activation::kGeluErf ? gate_gradient<GeluErf, T>
                                                  : gate_gradient<Relu, T>;
  all(x, upstream, rows, columns, x_gradient, y);
}

template <typename T>
void bias_activation(Activation kind, const T* x, const float* bias, int64_t rows, int columns, T* y) {
  const auto all = kind == Activation::kGeluTanh  ? activate<GeluTanh, T>
                   : kind == Activation::kGeluErf ? activate<GeluErf, T>
                                                  : activate<Relu, T>;
  all(x, bias, rows, columns, y);
}

template <typename T>
void bias_activation_gradient(
    Activation kind, const T* x, const float* bias, const T* upstream, int64_t rows, int columns, T* x_gradient,
    float* sums) {
  const auto all = kind == Activation::kGeluTanh  ? activate_gradient<GeluTanh, T>
                   : kind == Activation::kGeluErf ? activate_gradient<GeluErf, T>
                                                  : activate_gradient<Relu, T>;
  all(x, bias, upstream, rows, columns, x_gradient, sums);
}

template <typename T>
Shares softmax(
    const T* products, const float* mask, float scale, int columns, const Dropout& dropout, uint32_t element,
    T* weights, float* space) {
  if (dropout.dropped)
    return weigh<true>(products, mask, scale, columns, {dropout, element}, weights, space);
  return weigh<false>(products, mask, scale, columns, {dropout, element}, weights, space);
}

template <typename T>
void softmax_gradient(
    const T* products, const float* mask, float scale, int columns, const Dropout& dropout, uint32_t element,
    Shares shares, const T* upstream, T* gradient, float* space) {
  if (dropout.dropped)
    weigh_gradient<true>(products, mask, scale, columns, {dropout, element}, shares, upstream, gradient, space);
  else
    weigh_gradient<false>(products, mask, scale, columns, {dropout, element}, shares, upstream, gradient, space);
}

float cross_entropy(const float* logits, int columns, int label, Shares* shares) {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < columns; ++i) largest = logits[i] > largest ? logits[i] : largest;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < columns; ++i) sum += exponential(logits[i] - largest);
  *shares = {largest, 1.0f / sum};
  return std::log(sum) + largest - logits[label];
}

void cross_entropy_gradient(
    const float* logits, int columns, int label, Shares shares, float upstream, float* gradient) {
  const float largest = shares.largest, inverse_sum = shares.inverse_sum;
  const float hit = (exponential(logits[label] - largest) * inverse_sum - 1.0f) * upstream;
#pragma omp simd
  for (int i = 0; i < columns; ++i) gradient[i] = exponential(logits[i] - largest) * inverse_sum * upstream;
  gradient[label] = hit;
}

void add_to(const float* from, int64_t count, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

template <typename T>
void split(const T* from, const float* bias, const Heads& heads, T* const* to) {
  for (int part = 0; part < heads.parts; ++part) {
    T* place = to[part];
    for (int head = 0; head < heads.heads; ++head, from += heads.size, place += heads.stride) {
      if (bias == nullptr) {
        std::copy(from, from + heads.size, place);
        continue;
      }
#pragma omp simd
      for (int i = 0; i < heads.size; ++i) store(to_float(from[i]) + bias[i], place + i);
      bias += heads.size;
    }
  }
}

template <typename T>
void join(const T* const* from, const Heads& heads, T* to, float* sums) {
  for (int part = 0; part < heads.parts; ++part) {
    const T* place = from[part];
    for (int head = 0; head < heads.heads; ++head, to += heads.size, place += heads.stride) {
      std::copy(place, place + heads.size, to);
      if (sums == nullptr) continue;
#pragma omp simd
      for (int i = 0; i < heads.size; ++i) sums[i] += to_float(place[i]);
      sums += heads.size;
    }
  }
}

#define BERT_INSTANTIATE(T)                                                                                         \
  template struct ResidualNorm<T>;                                                                                  \
  template struct PreNorm<T>;                                                                                       \
  template void gated_activation(Activation, const T*, int64_t, int, T*);                                           \
  template void gated_activation_gradient(Activation, const T*, const T*, int64_t, int, T*, T*);                    \
  template void bias_activation(Activation, const T*, const float*, int64_t, int, T*);                              \
  template void bias_activation_gradient(Activation, const T*, const float*, const T*, int64_t, int, T*, float*);   \
  template Shares softmax(const T*, const float*, float, int, const Dropout&, uint32_t, T*, float*);                \
  template void softmax_gradient(                                                                                   \
      const T*, const float*, float, int, const Dropout&, uint32_t, Shares, const T*, T*, float*);                  \
  template void split(const T*, const float*, const Heads&, T* const*);                                             \
  template void join(const T* const*, const Heads&, T*, float*);

BERT_INSTANTIATE(float)
BERT_INSTANTIATE(BFloat16)

}  // namespace bert
