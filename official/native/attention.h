// Self-attention with rotary positions, of whole sequences or of a window: scores of a few queries and keys at a time,
// so that memory grows with the length of a row and not with its square. Plain loops, as in blocks.h.

#pragma once

#include <vector>

#include "blocks.h"

namespace bert {

// A row of tokens. A token sees those with its number in `ids`, 0 being padding, and with a reach only those that are
// no further away; outputs of padding are 0.
template <typename T>
struct RotaryAttention {
  const T* products;        // [length, 3, heads, size]: query, key and value
  const float *cos, *sin;   // [length, size / 2]: of the angles by which pairs of numbers, size / 2 apart, are turned
  const int32_t* ids;       // [length]
  int64_t length;
  int heads, size;
  int64_t reach;            // less than 0: whole sequences
  uint32_t first_row;       // number of the first row of scores of the first head, for dropout
  Dropout dropout;

  // How many numbers `forward` and `backward` need as memory, which begins with a cache line; what is there does not
  // matter.
  int64_t forward_space() const;
  int64_t backward_space() const;

  // Writes the outputs of a head, of [length, heads, size], and log(sum(exp(scores))) of [heads, length].
  void forward(int head, float* memory, T* outputs, float* log_sums) const;

  // Writes the gradients of a head's products, of [length, 3, heads, size].
  void backward(
      int head, float* memory, const T* outputs, const float* log_sums, const T* upstream, T* products_gradient) const;
};

}  // namespace bert
