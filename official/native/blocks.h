// What becomes of rows of numbers in the parts of a block that are bound by memory: plain loops over arrays that the
// compiler makes vector code of. Numbers are computed with in float32 and read and written in the type T, float or
// BFloat16. What is not finite stays so. A row is read as a whole before anything of it is written: results may take
// the place of what they are computed from.

#pragma once

#include "numbers.h"

namespace bert {

enum class Activation { kGeluTanh, kGeluErf, kRelu };

// Which elements of an array dropout keeps: those whose hash is at least `dropped`. They are multiplied with `factor`.
// The hash of element i is that of first + i * stride, as in official/modeling/layers.py. `dropped` 0: no dropout.
struct Dropout {
  uint32_t first = 0, stride = 1, dropped = 0;
  float factor = 1;
};

// What a row is normalised by: (x - mean) * scale.
struct Moments {
  float mean, scale;
};

// What a row of scores becomes weights by: exp(score - largest) * inverse_sum.
struct Shares {
  float largest, inverse_sum;
};

// LayerNorm(residual + dropout(x + bias)) of rows of `columns` numbers.
template <typename T>
struct ResidualNorm {
  const T *x, *residual;
  const float *bias, *gamma, *beta;
  int columns;
  float epsilon;
  Dropout dropout;

  // Writes the rows begin ... end - 1 of the result and their moments. `space`: of a row.
  void forward(int64_t begin, int64_t end, T* y, Moments* moments, float* space) const;

  // Writes the rows of the gradients of x and of the residual, and adds to the sums, a row each for bias, gamma and
  // beta, what the rows give to their gradients. `space`: of two rows.
  void backward(
      int64_t begin, int64_t end, const T* upstream, const Moments* moments, T* x_gradient, T* residual_gradient,
      float* sums, float* space) const;
};

// LayerNorm of rows of `columns` numbers, without a bias: of x, or of x + residual.
template <typename T>
struct PreNorm {
  const T *x, *residual;  // the latter null for none
  const float* gamma;
  int columns;
  float epsilon;

  // Writes the rows begin ... end - 1 of the sum, where there is a residual, of the result, and their moments.
  // `space`: of a row.
  void forward(int64_t begin, int64_t end, T* total, T* y, Moments* moments, float* space) const;

  // Writes the rows of the gradient of x, which has no residual here, plus `added`, where it is not null, and again
  // those of the result, where `y` is not null; adds to `sums` what the rows give to the gradient of gamma. `space`: of
  // two rows.
  void backward(
      int64_t begin, int64_t end, const T* upstream, const T* added, const Moments* moments, T* x_gradient, T* y,
      float* sums, float* space) const;
};

// y [rows, columns] = activation(first half) * second half of x [rows, 2 x columns].
template <typename T>
void gated_activation(Activation kind, const T* x, int64_t rows, int columns, T* y);

// Writes the gradient of x, and again y.
template <typename T>
void gated_activation_gradient(
    Activation kind, const T* x, const T* upstream, int64_t rows, int columns, T* x_gradient, T* y);

// y = activation(x + bias) of `rows` rows.
template <typename T>
void bias_activation(Activation kind, const T* x, const float* bias, int64_t rows, int columns, T* y);

// Writes the gradient of x, and adds its rows to `sums`.
template <typename T>
void bias_activation_gradient(
    Activation kind, const T* x, const float* bias, const T* upstream, int64_t rows, int columns, T* x_gradient,
    float* sums);

// A row of attention's weights: dropout(softmax(scale * products + mask)). `element`: number of the row's first one.
template <typename T>
Shares softmax(
    const T* products, const float* mask, float scale, int columns, const Dropout& dropout, uint32_t element,
    T* weights, float* space);

// Writes the gradient of a row of products, given that of the weights. `space`: of two rows.
template <typename T>
void softmax_gradient(
    const T* products, const float* mask, float scale, int columns, const Dropout& dropout, uint32_t element,
    Shares shares, const T* upstream, T* gradient, float* space);

// Returns -log softmax(logits)[label].
float cross_entropy(const float* logits, int columns, int label, Shares* shares);

// Writes (softmax(logits) - [is label]) * upstream.
void cross_entropy_gradient(
    const float* logits, int columns, int label, Shares shares, float upstream, float* gradient);

// to += from.
void add_to(const float* from, int64_t count, float* to);

// Where the numbers of a token stand: `parts` times `heads` times `size` of them side by side, or in as many arrays
// as there are parts, where those of a head are `stride` behind those of the head before it.
struct Heads {
  int parts, heads, size;
  int64_t stride;
};

// Writes a token's numbers plus bias, where it is not null, into the arrays of the parts.
template <typename T>
void split(const T* from, const float* bias, const Heads& heads, T* const* to);

// Writes what stands in the arrays of the parts side by side, and adds it to `sums`, where they are not null.
template <typename T>
void join(const T* const* from, const Heads& heads, T* to, float* sums);

}  // namespace bert
