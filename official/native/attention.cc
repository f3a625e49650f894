#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512")  // unasked, GCC takes half a register
#endif

#include "attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "functions.h"

namespace bert {
namespace {

// -- Matrix products of small blocks

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kColumns = 2 * kLanes;  // of a tile
constexpr int kTileRows = 6;          // with two vectors each: as many sums as there are registers for

typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef float InMemory __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const InMemory*>(from); }

inline void save(Vector vector, float* to) { *reinterpret_cast<InMemory*>(to) = vector; }

inline Vector add_product(Vector sum, float factor, Vector numbers) { return sum + factor * numbers; }

// Makes an element of a product of the number at `from`.
inline void make_element(const float* from, int64_t, float* to) { *to = *from; }

// Returns a row of numbers as elements, written to `room` where they are other than numbers.
inline const float* elements_of(const float* from, int, float*) { return from; }

// The elements that products of numbers of a type take, and of how many numbers one is.
template <typename T>
struct ElementOf {
  using Type = float;
};

template <typename E>
constexpr int kNumbers = 1;

#if defined(__AVX512BF16__)
// Two bfloat16, which are multiplied with two others, and added, at once. The first is in the lower half.
struct Pair {
  uint32_t bits;
};

template <>
struct ElementOf<BFloat16> {
  using Type = Pair;
};

template <>
constexpr int kNumbers<Pair> = 2;

inline __m512i load(const Pair* from) { return _mm512_loadu_si512(from); }

inline Vector add_product(Vector sum, Pair factor, __m512i numbers) {
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(factor.bits), (__m512bh)numbers);
}

// Of the numbers at `from` and `step` behind it, which are bfloat16 already.
inline void make_element(const float* from, int64_t step, Pair* to) {
  to->bits = float_to_bits(from[0]) >> 16 | (float_to_bits(from[step]) & 0xffff0000u);
}

// `count` is a multiple of 2 * kLanes.
inline const Pair* elements_of(const float* from, int count, Pair* room) {
  for (int i = 0; i < count; i += 2 * kLanes) {
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)load(from + i + kLanes), (__m512)load(from + i));
    _mm512_storeu_si512(room + i / 2, (__m512i)both);
  }
  return room;
}
#endif

// A matrix whose element (i, j) stands at i * row + j * column.
template <typename E>
struct Matrix {
  const E* elements;
  int64_t row, column;
};

template <int kRows, bool kAdds, typename E>
inline void multiply_tile(const E* a, Matrix<E> of_a, const E* b, int64_t b_row, int depth, float* c, int64_t c_row) {
  Vector sums[kRows][2];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    sums[i][0] = kAdds ? load(c + i * c_row) : Vector{};
    sums[i][1] = kAdds ? load(c + i * c_row + kLanes) : Vector{};
  }
  for (int k = 0; k < depth; ++k, a += of_a.column, b += b_row) {
    const auto left = load(b), right = load(b + kLanes);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const E factor = a[i * of_a.row];
      sums[i][0] = add_product(sums[i][0], factor, left);
      sums[i][1] = add_product(sums[i][1], factor, right);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    save(sums[i][0], c + i * c_row);
    save(sums[i][1], c + i * c_row + kLanes);
  }
}

// c [rows, columns] = a b, or c += a b, of elements a [rows, depth] and b [depth, columns]; columns a multiple of
// kColumns.
template <bool kAdds, typename E>
void multiply(Matrix<E> a, const E* b, int64_t b_row, int rows, int columns, int depth, float* c, int64_t c_row) {
  for (int column = 0; column < columns; column += kColumns) {
    int row = 0;
    const auto tile = [&](auto multiply) {
      multiply(a.elements + row * a.row, a, b + column, b_row, depth, c + row * c_row + column, c_row);
    };
    for (; row + kTileRows <= rows; row += kTileRows) tile(multiply_tile<kTileRows, kAdds, E>);
    switch (rows - row) {
      case 5: tile(multiply_tile<5, kAdds, E>); break;
      case 4: tile(multiply_tile<4, kAdds, E>); break;
      case 3: tile(multiply_tile<3, kAdds, E>); break;
      case 2: tile(multiply_tile<2, kAdds, E>); break;
      case 1: tile(multiply_tile<1, kAdds, E>); break;
      default: break;
    }
  }
}

// -- Which tokens see each other

constexpr int kQueries = 48, kKeys = 64;  // of a block
constexpr float kUnseen = -1e30f;         // of a score

// The numbers of the sequences of some tokens: the least and the greatest beside 0, and whether all are one.
struct Numbers {
  int32_t least = 0, greatest = 0;
  bool are_one = false;

  Numbers(const int32_t* ids, int count, int full) {
    int zeros = 0;
    for (int i = 0; i < count; ++i) {
      if (ids[i] == 0) {
        ++zeros;
        continue;
      }
      least = least == 0 ? ids[i] : std::min(least, ids[i]);
      greatest = greatest == 0 ? ids[i] : std::max(greatest, ids[i]);
    }
    are_one = count == full && zeros == 0 && least == greatest;
  }

  bool are_none() const { return greatest == 0; }
};

// What a block of queries sees of a block of keys.
enum class Sight { kNothing, kAll, kSome };

struct Blocks {
  const int32_t* ids;
  int64_t length, reach;
  std::vector<Numbers> keys;

  Blocks(const int32_t* ids, int64_t length, int64_t reach) : ids(ids), length(length), reach(reach) {
    for (int64_t first = 0; first < length; first += kKeys)
      keys.emplace_back(ids + first, static_cast<int>(std::min<int64_t>(kKeys, length - first)), kKeys);
  }

  int64_t count() const { return keys.size(); }

  // The first block of keys, and that behind the last, that queries see anything of.
  int64_t begin(int64_t first) const { return reach < 0 ? 0 : std::max<int64_t>(0, first - reach) / kKeys; }

  int64_t end(int64_t last) const {
    return reach < 0 ? count() : std::min<int64_t>(count(), (last + reach) / kKeys + 1);
  }

  Sight sight(const Numbers& queries, int64_t first, int rows, int64_t block) const {
    const Numbers& other = keys[block];
    if (queries.are_none() || other.are_none() || queries.least > other.greatest || other.least > queries.greatest)
      return Sight::kNothing;
    const int64_t key = block * kKeys;
    const bool is_near = reach < 0 || (first + rows - 1 - key <= reach && key + kKeys - 1 - first <= reach);
    return queries.are_one && other.are_one && is_near ? Sight::kAll : Sight::kSome;
  }

  // Puts kUnseen where a query does not see a key.
  void hide(int64_t first, int rows, int64_t block, float* scores) const {
    const int64_t key = block * kKeys;
    const int columns = static_cast<int>(std::min<int64_t>(kKeys, length - key));
    for (int row = 0; row < rows; ++row, scores += kKeys) {
      const int32_t id = ids[first + row];
      const int64_t from = reach < 0 ? 0 : std::max<int64_t>(0, first + row - reach - key);
      const int64_t to = reach < 0 ? columns : std::min<int64_t>(columns, first + row + reach + 1 - key);
      for (int column = 0; column < kKeys; ++column) {
        const bool is_seen = id != 0 && column >= from && column < to && ids[key + column] == id;
        scores[column] = is_seen ? scores[column] : kUnseen;
      }
    }
  }
};

// Zeroes what dropout drops of weights, and of a second array in the same places, and scales the rest.
void drop(const Dropout& dropout, uint32_t element, float* weights, float* others) {
  for (int i = 0; i < kKeys; ++i) {
    const bool is_kept = mixed(dropout.first + (element + i) * dropout.stride) >= dropout.dropped;
    weights[i] = is_kept ? weights[i] * dropout.factor : 0.0f;
    if (others != nullptr) others[i] = is_kept ? others[i] * dropout.factor : 0.0f;
  }
}

// -- Rows of a head

// Where the numbers of a head stand in a row of tokens, and how wide they are when zeros fill them up.
template <typename T>
struct Head {
  const RotaryAttention<T>& of;
  int head, width;

  Head(const RotaryAttention<T>& of, int head)
      : of(of), head(head), width((of.size + kColumns - 1) / kColumns * kColumns) {}

  int64_t place(int64_t token, int part) const {
    return ((token * 3 + part) * of.heads + head) * static_cast<int64_t>(of.size);
  }

  int64_t output(int64_t token) const { return (token * of.heads + head) * static_cast<int64_t>(of.size); }

  // Writes the numbers of a token's part, turned where it is no value, times a factor, rounded to T.
  void read(int64_t token, int part, float factor, float* to) const {
    const T* from = of.products + place(token, part);
    const int half = of.size / 2;
    const float *cos = of.cos + token * half, *sin = of.sin + token * half;
    if (part == 2) {
      for (int i = 0; i < of.size; ++i) to[i] = to_float(from[i]);
    } else {
#pragma omp simd
      for (int i = 0; i < half; ++i) {
        const float first = to_float(from[i]) * factor, second = to_float(from[i + half]) * factor;
        to[i] = rounded<T>(first * cos[i] - second * sin[i]);
        to[i + half] = rounded<T>(second * cos[i] + first * sin[i]);
      }
    }
    for (int i = of.size; i < width; ++i) to[i] = 0.0f;
  }

  // Writes the gradient of a token's part, given that of what `read` wrote.
  void write(int64_t token, int part, float factor, const float* from, T* gradient) const {
    T* to = gradient + place(token, part);
    const int half = of.size / 2;
    const float *cos = of.cos + token * half, *sin = of.sin + token * half;
    if (part == 2) {
      for (int i = 0; i < of.size; ++i) store(from[i], to + i);
      return;
    }
#pragma omp simd
    for (int i = 0; i < half; ++i) {
      const float first = from[i] * factor, second = from[i + half] * factor;
      store(first * cos[i] + second * sin[i], to + i);
      store(second * cos[i] - first * sin[i], to + i + half);
    }
  }

  // The numbers of a part of all tokens, [blocks, kKeys, width].
  int64_t count() const { return (of.length + kKeys - 1) / kKeys * kKeys * width; }

  // Writes these, zeros behind the last token.
  void read_all(int part, float* to) const {
    for (int64_t token = 0; token < of.length; ++token) read(token, part, 1.0f, to + token * width);
    std::fill(to + of.length * width, to + count(), 0.0f);
  }

  // Writes the same with the tokens of each block side by side: [blocks, width, kKeys]; an element has numbers of one
  // token.
  template <typename E>
  void columns(const float* rows, E* elements) const {
    for (int64_t block = 0; block < count(); block += kKeys * width)
      for (int token = 0; token < kKeys; ++token)
        for (int i = 0; i < width; i += kNumbers<E>)
          make_element(
              rows + block + token * width + i, 1, elements + (block + i * kKeys) / kNumbers<E> + token);
  }

  // Writes the same, [blocks, kKeys, width]; an element has numbers of neighbouring tokens.
  template <typename E>
  void stacked(const float* rows, E* elements) const {
    for (int64_t row = 0; row < count(); row += kNumbers<E> * width)
      for (int i = 0; i < width; ++i) make_element(rows + row + i, width, elements + row / kNumbers<E> + i);
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(of.size)); }

  uint32_t element(int64_t query, int64_t key) const {
    const uint32_t row = of.first_row + static_cast<uint32_t>(head * of.length + query);
    return row * static_cast<uint32_t>(of.length) + static_cast<uint32_t>(key);
  }
};

}  // namespace

template <typename T>
int64_t RotaryAttention<T>::forward_space() const {
  return 3 * Head<T>(*this, 0).count();
}

template <typename T>
int64_t RotaryAttention<T>::backward_space() const {
  return 5 * Head<T>(*this, 0).count();
}

// Source: Dao et al. 2022, "FlashAttention", with a running maximum for each query.
template <typename T>
void RotaryAttention<T>::forward(int head, float* space, T* outputs, float* log_sums) const {
  using E = typename ElementOf<T>::Type;
  const Head<T> own(*this, head);
  const int width = own.width;
  const Blocks blocks(ids, length, reach);
  const int64_t count = own.count();
  E *values = reinterpret_cast<E*>(space + count), *keys = reinterpret_cast<E*>(space + 2 * count);
  if constexpr (std::is_same_v<E, float>) {
    own.read_all(2, values);
  } else {
    own.read_all(2, space);
    own.stacked(space, values);
  }
  own.read_all(1, space);
  own.columns(space, keys);
  std::vector<float> rotated(kQueries * width), scores(kQueries * kKeys), sums(kQueries * width);
  std::vector<E> of_queries(kQueries * width / kNumbers<E>), of_weights(kQueries * kKeys / kNumbers<E>);
  float largest[kQueries], totals[kQueries];
  log_sums += head * length;
  for (int64_t first = 0; first < length; first += kQueries) {
    const int rows = static_cast<int>(std::min<int64_t>(kQueries, length - first));
    const Numbers numbers(ids + first, rows, rows);
    std::fill(sums.begin(), sums.end(), 0.0f);
    std::fill(largest, largest + kQueries, kUnseen);
    std::fill(totals, totals + kQueries, 0.0f);
    for (int row = 0; row < rows; ++row) own.read(first + row, 0, own.scale(), rotated.data() + row * width);
    const E* queries = elements_of(rotated.data(), rows * width, of_queries.data());
    for (int64_t block = blocks.begin(first); block < blocks.end(first + rows - 1); ++block) {
      const Sight sight = blocks.sight(numbers, first, rows, block);
      if (sight == Sight::kNothing) continue;
      const int64_t at = block * kKeys * width / kNumbers<E>;
      multiply<false>(
          {queries, width / kNumbers<E>, 1}, keys + at, kKeys, rows, kKeys, size / kNumbers<E>,
          scores.data(), kKeys);
      if (sight == Sight::kSome) blocks.hide(first, rows, block, scores.data());
      for (int row = 0; row < rows; ++row) {
        float *of_row = scores.data() + row * kKeys, *sum = sums.data() + row * width;
        float most = largest[row], total = 0;
#pragma omp simd reduction(max : most)
        for (int i = 0; i < kKeys; ++i) most = of_row[i] > most ? of_row[i] : most;
#pragma omp simd reduction(+ : total)
        for (int i = 0; i < kKeys; ++i) {
          of_row[i] = exponential(of_row[i] - most);
          total += of_row[i];
        }
        if (most != largest[row]) {
          const float share = exponential(largest[row] - most);
          totals[row] *= share;
#pragma omp simd
          for (int i = 0; i < width; ++i) sum[i] *= share;
        }
        largest[row] = most;
        totals[row] += total;
        if (dropout.dropped) drop(dropout, own.element(first + row, block * kKeys), of_row, nullptr);
      }
      const E* weights = elements_of(scores.data(), rows * kKeys, of_weights.data());
      multiply<true>(
          {weights, kKeys / kNumbers<E>, 1}, values + at, width, rows, width, kKeys / kNumbers<E>, sums.data(),
          width);
    }
    for (int row = 0; row < rows; ++row) {
      const bool is_token = ids[first + row] != 0;
      const float inverse = is_token ? 1.0f / totals[row] : 0.0f, *sum = sums.data() + row * width;
      T* output = outputs + own.output(first + row);
      for (int i = 0; i < size; ++i) store(sum[i] * inverse, output + i);
      log_sums[first + row] = is_token ? largest[row] + std::log(totals[row]) : 0.0f;
    }
  }
}

template <typename T>
void RotaryAttention<T>::backward(
    int head, float* space, const T* outputs, const float* log_sums, const T* upstream, T* products_gradient) const {
  const Head<T> own(*this, head);
  const int width = own.width;
  const Blocks blocks(ids, length, reach);
  const int64_t count = own.count();
  float *keys = space, *key_columns = keys + count, *value_columns = key_columns + count;
  float *key_sums = value_columns + count, *value_sums = key_sums + count;
  own.read_all(2, keys);
  own.columns(keys, value_columns);
  own.read_all(1, keys);
  own.columns(keys, key_columns);
  std::fill(key_sums, value_sums + count, 0.0f);
  std::vector<float> queries(kQueries * width), given(kQueries * width, 0.0f), query_sums(kQueries * width);
  std::vector<float> weights(kQueries * kKeys), slopes(kQueries * kKeys);
  float along[kQueries];
  log_sums += head * length;
  for (int64_t first = 0; first < length; first += kQueries) {
    const int rows = static_cast<int>(std::min<int64_t>(kQueries, length - first));
    const Numbers numbers(ids + first, rows, rows);
    std::fill(query_sums.begin(), query_sums.end(), 0.0f);
    for (int row = 0; row < rows; ++row) {
      own.read(first + row, 0, own.scale(), queries.data() + row * width);
      const T *output = outputs + own.output(first + row), *from = upstream + own.output(first + row);
      float sum = 0;
      for (int i = 0; i < size; ++i) {
        const float gradient = to_float(from[i]);
        given[row * width + i] = gradient;
        sum += gradient * to_float(output[i]);
      }
      along[row] = sum;
    }
    for (int64_t block = blocks.begin(first); block < blocks.end(first + rows - 1); ++block) {
      const Sight sight = blocks.sight(numbers, first, rows, block);
      if (sight == Sight::kNothing) continue;
      const int64_t at = block * kKeys * width;
      multiply<false>(
          {queries.data(), width, 1}, key_columns + at, kKeys, rows, kKeys, size, weights.data(), kKeys);
      if (sight == Sight::kSome) blocks.hide(first, rows, block, weights.data());
      multiply<false>(
          {given.data(), width, 1}, value_columns + at, kKeys, rows, kKeys, size, slopes.data(), kKeys);
      for (int row = 0; row < rows; ++row) {
        float *weight = weights.data() + row * kKeys, *slope = slopes.data() + row * kKeys;
        const float log_sum = log_sums[first + row], mean = along[row];
        if (!dropout.dropped) {
#pragma omp simd
          for (int i = 0; i < kKeys; ++i) {
            weight[i] = exponential(weight[i] - log_sum);
            slope[i] = (slope[i] - mean) * weight[i];
          }
          continue;
        }
        float kept[kKeys];
        for (int i = 0; i < kKeys; ++i) weight[i] = kept[i] = exponential(weight[i] - log_sum);
        drop(dropout, own.element(first + row, block * kKeys), weight, slope);
        for (int i = 0; i < kKeys; ++i) slope[i] = (slope[i] - mean) * kept[i];
      }
      multiply<true>({weights.data(), 1, kKeys}, given.data(), width, kKeys, width, rows, value_sums + at, width);
      multiply<true>({slopes.data(), 1, kKeys}, queries.data(), width, kKeys, width, rows, key_sums + at, width);
      multiply<true>({slopes.data(), kKeys, 1}, keys + at, width, rows, width, kKeys, query_sums.data(), width);
    }
    for (int row = 0; row < rows; ++row)
      own.write(first + row, 0, own.scale(), query_sums.data() + row * width, products_gradient);
  }
  for (int64_t token = 0; token < length; ++token) {
    own.write(token, 1, 1.0f, key_sums + token * width, products_gradient);
    own.write(token, 2, 1.0f, value_sums + token * width, products_gradient);
  }
}

template struct RotaryAttention<float>;
template struct RotaryAttention<BFloat16>;

}  // namespace bert
