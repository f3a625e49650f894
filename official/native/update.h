// What becomes of a run of weights: plain loops over arrays that the compiler makes vector code of. Nothing of
// TensorFlow, whose headers do not take all instructions of all CPUs.

#pragma once

#include "numbers.h"

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

struct Half {
  uint16_t bits;
};

// Returns the sum of squares.
double sum_of_squares(const float* numbers, int64_t count);
double sum_of_squares(const BFloat16* numbers, int64_t count);
double sum_of_squares(const Half* numbers, int64_t count);

void widen(const BFloat16* from, int64_t count, float* to);
void widen(const Half* from, int64_t count, float* to);

// Rounds to the nearest, ties to even, as TensorFlow's Cast does.
void narrow(const float* from, int64_t count, BFloat16* to);
void narrow(const float* from, int64_t count, Half* to);

// Adam, of weights of which the share `kept` is left.
void adam(const Numbers& n, const float* gradient, int64_t count, Run w, Run m, Run v, float kept);

// Updates the moments and adds up what LAMB's ratio is made of.
void lamb_moments(
    const Numbers& n, const float* gradient, int64_t count, const float* w, Run m, Run v, Squares* squares);

// Updates the weights: what `lamb_moments` has added up is computed again, which moves no more memory than
// keeping it would. `step`: the learning rate times LAMB's ratio.
void lamb_weights(const Numbers& n, int64_t count, Run w, const float* m, const float* v, float step);

}  // namespace bert
