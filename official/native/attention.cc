#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512")  // unasked, GCC takes half a register
#endif

#include "attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
// Intel's AVX512-BF16 multiplies no faster than floats, where a virtual machine hides the AMX that came with it.
#if defined(__AVX512BF16__) && (defined(__AMX_BF16__) || !defined(__AVX512FP16__))
#define BERT_MULTIPLIES_BFLOAT16
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "functions.h"

namespace bert {
namespace {

// -- Matrix products of small blocks

#if defined(__AVX512F__)
constexpr int kLanes = 16, kTileRows = 12;
#elif defined(__AVX__)
constexpr int kLanes = 8, kTileRows = 6;
#else
constexpr int kLanes = 4, kTileRows = 6;
#endif
constexpr int kColumns = 2 * kLanes;  // of a tile; its rows have two vectors each, all sums in registers

typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef float InMemory __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const InMemory*>(from); }

inline void save(Vector vector, float* to) { *reinterpret_cast<InMemory*>(to) = vector; }

inline Vector add_product(Vector sum, float factor, Vector numbers) { return sum + factor * numbers; }

// A matrix whose element (i, j) stands at i * row + j * column.
template <typename E>
struct Matrix {
  const E* elements;
  int64_t row, column;
};

// Writes elements [rows, columns] as [columns, rows].
template <typename E>
inline void transpose(const E* from, int rows, int columns, E* to) {
  for (int column = 0; column < columns; ++column)
    for (int row = 0; row < rows; ++row) to[column * rows + row] = from[row * columns + column];
}

// The next three return numbers [rows, columns] as elements, written to `room` where they are other than numbers.

// [rows, columns / kNumbers]: an element has numbers of a row.
inline Matrix<float> by_rows(const float* from, int, int columns, float*) { return {from, columns, 1}; }

// [rows / kNumbers, columns]: an element has numbers of a column.
inline const float* by_columns(const float* from, int, int, float*) { return from; }

// The transpose of these, [columns, rows / kNumbers].
inline Matrix<float> transposed(const float* from, int, int columns, float*) { return {from, 1, columns}; }

// The elements that products of numbers of a type take, and of how many numbers one is.
template <typename T>
struct ElementOf {
  using Type = float;
};

template <typename E>
constexpr int kNumbers = 1;

#if defined(BERT_MULTIPLIES_BFLOAT16)
// Two bfloat16, which are multiplied with two others, and added, at once. The first is in the lower half.
enum class Pair : uint32_t {};

template <>
struct ElementOf<BFloat16> {
  using Type = Pair;
};

template <>
constexpr int kNumbers<Pair> = 2;

inline __m512i load(const Pair* from) { return _mm512_loadu_si512(from); }

inline Vector add_product(Vector sum, Pair factor, __m512i numbers) {
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(factor)), (__m512bh)numbers);
}

inline __m512i rounded_pair(const float* first, const float* second) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)load(second), (__m512)load(first));
}

// `columns` is a multiple of 2 * kLanes.
inline Matrix<Pair> by_rows(const float* from, int rows, int columns, Pair* room) {
  for (int i = 0; i < rows * columns; i += 2 * kLanes)
    _mm512_storeu_si512(room + i / 2, rounded_pair(from + i, from + i + kLanes));
  return {room, columns / 2, 1};
}

// `rows` are even, and `columns` a multiple of kLanes.
inline const Pair* by_columns(const float* from, int rows, int columns, Pair* room) {
  uint16_t order[2 * kLanes];  // of numbers: the first of the upper row, the first of the lower row, the second ..
  for (int i = 0; i < kLanes; ++i) order[2 * i] = i, order[2 * i + 1] = kLanes + i;
  const __m512i in_turns = _mm512_loadu_si512(order);
  Pair* to = room;
  for (int row = 0; row < rows; row += 2, from += 2 * columns)
    for (int i = 0; i < columns; i += kLanes, to += kLanes)
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(in_turns, rounded_pair(from + i, from + columns + i)));
  return room;
}

inline Matrix<Pair> transposed(const float* from, int rows, int columns, Pair* room) {
  std::vector<Pair> pairs(rows * columns / 2);
  transpose(by_columns(from, rows, columns, pairs.data()), rows / 2, columns, room);
  return {room, rows / 2, 1};
}
#endif

#if defined(__AMX_BF16__)
constexpr int kTile = 16;  // rows, and elements of a row, of a register of Intel's AMX

// Asks the kernel, once in a process, for the registers: Linux keeps no room for them unasked.
bool tiles_are_allowed() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool are_allowed = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return are_allowed;
}

// Gives this thread all registers in full size, and gives them back: other libraries set their own sizes.
struct Tiles {
  Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, none[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {kTile, kTile, kTile, kTile, kTile, kTile, kTile, kTile};
    } sizes;
    if (tiles_are_allowed()) _tile_loadconfig(&sizes);
  }
  ~Tiles() {
    if (tiles_are_allowed()) _tile_release();
  }
};

// `multiply` of as many rows, and as much depth, as fill registers: rows behind get any numbers, and elements behind in
// depth have to be 0. Of `a`, the elements of a row follow each other. Rows that begin with a cache line are three times
// as fast.
template <bool kAdds>
void multiply_in_tiles(
    Matrix<Pair> a, const Pair* b, int64_t b_row, int rows, int columns, int depth, float* c, int64_t c_row) {
  const int64_t a_bytes = a.row * sizeof(Pair), b_bytes = b_row * sizeof(Pair), c_bytes = c_row * sizeof(float);
  for (int row = 0; row < rows; row += 2 * kTile) {
    const bool has_second = row + kTile < rows;
    const Pair *upper = a.elements + row * a.row, *lower = upper + kTile * a.row;
    for (int column = 0; column < columns; column += 2 * kTile) {
      float *left = c + row * c_row + column, *right = left + kTile;
      float *left_below = left + kTile * c_row, *right_below = right + kTile * c_row;
      if (kAdds) {
        _tile_loadd(0, left, c_bytes);
        _tile_loadd(1, right, c_bytes);
      } else {
        _tile_zero(0);
        _tile_zero(1);
      }
      if (has_second && kAdds) {
        _tile_loadd(2, left_below, c_bytes);
        _tile_loadd(3, right_below, c_bytes);
      } else {
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int k = 0; k < depth; k += kTile) {
        _tile_loadd(4, b + k * b_row + column, b_bytes);
        _tile_loadd(5, b + k * b_row + column + kTile, b_bytes);
        _tile_loadd(6, upper + k, a_bytes);
        _tile_dpbf16ps(0, 6, 4);
        _tile_dpbf16ps(1, 6, 5);
        if (!has_second) continue;
        _tile_loadd(7, lower + k, a_bytes);
        _tile_dpbf16ps(2, 7, 4);
        _tile_dpbf16ps(3, 7, 5);
      }
      _tile_stored(0, left, c_bytes);
      _tile_stored(1, right, c_bytes);
      if (!has_second) continue;
      _tile_stored(2, left_below, c_bytes);
      _tile_stored(3, right_below, c_bytes);
    }
  }
}
#endif

template <int kRows, bool kAdds, typename E>
inline void multiply_tile(const E* a, Matrix<E> of_a, const E* b, int64_t b_row, int depth, float* c, int64_t c_row) {
  Vector sums[kRows][2];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    sums[i][0] = kAdds ? load(c + i * c_row) : Vector{};
    sums[i][1] = kAdds ? load(c + i * c_row + kLanes) : Vector{};
  }
  for (int k = 0; k < depth; ++k, a += of_a.column, b += b_row) {
    const auto left = load(b), right = load(b + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const E factor = a[i * of_a.row];
      sums[i][0] = add_product(sums[i][0], factor, left);
      sums[i][1] = add_product(sums[i][1], factor, right);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    save(sums[i][0], c + i * c_row);
    save(sums[i][1], c + i * c_row + kLanes);
  }
}

// The same of the last rows, fewer than kRows.
template <int kRows, bool kAdds, typename E>
inline void multiply_rest(
    int rows, const E* a, Matrix<E> of_a, const E* b, int64_t b_row, int depth, float* c, int64_t c_row) {
  if constexpr (kRows > 1) {
    if (rows == kRows - 1) return multiply_tile<kRows - 1, kAdds>(a, of_a, b, b_row, depth, c, c_row);
    multiply_rest<kRows - 1, kAdds>(rows, a, of_a, b, b_row, depth, c, c_row);
  }
}

// c [rows, columns] = a b, or c += a b, of elements a [rows, depth] and b [depth, columns]; columns a multiple of
// kColumns.
template <bool kAdds, typename E>
void multiply(Matrix<E> a, const E* b, int64_t b_row, int rows, int columns, int depth, float* c, int64_t c_row) {
#if defined(__AMX_BF16__)
  if constexpr (std::is_same_v<E, Pair>) {
    if (tiles_are_allowed()) return multiply_in_tiles<kAdds>(a, b, b_row, rows, columns, depth, c, c_row);
  }
#endif
  for (int column = 0; column < columns; column += kColumns) {
    int row = 0;
    for (; row + kTileRows <= rows; row += kTileRows)
      multiply_tile<kTileRows, kAdds>(
          a.elements + row * a.row, a, b + column, b_row, depth, c + row * c_row + column, c_row);
    multiply_rest<kTileRows, kAdds>(
        rows - row, a.elements + row * a.row, a, b + column, b_row, depth, c + row * c_row + column, c_row);
  }
}

// -- Which tokens see each other

constexpr int kQueries = 64, kKeys = 64;  // of a block
static_assert(kQueries >= kKeys, "`backward` writes the gradients of keys from the room of queries");
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
    const int32_t* others = ids + block * kKeys;
    const int columns = static_cast<int>(std::min<int64_t>(kKeys, length - block * kKeys));
    for (int row = 0; row < rows; ++row, scores += kKeys) {
      const int32_t id = ids[first + row];
      const int64_t place = first + row - block * kKeys;  // of the key in the same place
      const int from = reach < 0 ? 0 : static_cast<int>(std::clamp<int64_t>(place - reach, 0, columns));
      const int to = reach < 0 ? columns : static_cast<int>(std::clamp<int64_t>(place + reach + 1, 0, columns));
      for (int column = 0; column < columns; ++column) {
        const bool is_seen = id != 0 && column >= from && column < to && others[column] == id;
        scores[column] = is_seen ? scores[column] : kUnseen;
      }
      std::fill(scores + columns, scores + kKeys, kUnseen);
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

  // Writes the same with the tokens of each block side by side, [blocks, width / kNumbers, kKeys].
  template <typename E>
  void columns(const float* rows, E* elements) const {
    std::vector<E> room(kKeys * width / kNumbers<E>);
    for (int64_t block = 0; block < count(); block += kKeys * width)
      transpose(
          by_rows(rows + block, kKeys, width, room.data()).elements, kKeys, width / kNumbers<E>,
          elements + block / kNumbers<E>);
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(of.size)); }

  uint32_t element(int64_t query, int64_t key) const {
    const uint32_t row = of.first_row + static_cast<uint32_t>(head * of.length + query);
    return row * static_cast<uint32_t>(of.length) + static_cast<uint32_t>(key);
  }
};

// Memory that is taken piece by piece, each from a cache line on.
struct Space {
  float* free;

  template <typename E>
  E* take(int64_t count) {
    static_assert(sizeof(E) == sizeof(float), "pieces are counted in numbers");
    float* piece = free;
    free += (count + 15) / 16 * 16;
    return reinterpret_cast<E*>(piece);
  }
};

}  // namespace

template <typename T>
int64_t RotaryAttention<T>::forward_space() const {
  const Head<T> own(*this, 0);
  return 3 * own.count() + kQueries * (3 * own.width + 2 * kKeys);
}

template <typename T>
int64_t RotaryAttention<T>::backward_space() const {
  const Head<T> own(*this, 0);
  return 6 * own.count() + kQueries * (7 * own.width + 4 * kKeys);
}

// Source: Dao et al. 2022, "FlashAttention", with a running maximum for each query.
template <typename T>
void RotaryAttention<T>::forward(int head, float* memory, T* outputs, float* log_sums) const {
  using E = typename ElementOf<T>::Type;
  const Head<T> own(*this, head);
#if defined(__AMX_BF16__)
  const Tiles tiles;
#endif
  const int width = own.width;
  const Blocks blocks(ids, length, reach);
  const int64_t count = own.count();
  Space space{memory};
  auto *rows_of_all = space.take<float>(count), *rotated = space.take<float>(kQueries * width);
  auto *scores = space.take<float>(kQueries * kKeys), *sums = space.take<float>(kQueries * width);
  auto *keys = space.take<E>(count / kNumbers<E>), *room = space.take<E>(count / kNumbers<E>);
  auto *of_queries = space.take<E>(kQueries * width), *of_weights = space.take<E>(kQueries * kKeys);
  own.read_all(1, rows_of_all);
  own.columns(rows_of_all, keys);
  own.read_all(2, rows_of_all);
  const E* values = by_columns(rows_of_all, static_cast<int>(count / width), width, room);
  float largest[kQueries], totals[kQueries];
  log_sums += head * length;
  for (int64_t first = 0; first < length; first += kQueries) {
    const int rows = static_cast<int>(std::min<int64_t>(kQueries, length - first));
    const Numbers numbers(ids + first, rows, rows);
    std::fill(sums, sums + kQueries * width, 0.0f);
    std::fill(largest, largest + kQueries, kUnseen);
    std::fill(totals, totals + kQueries, 0.0f);
    for (int row = 0; row < rows; ++row) own.read(first + row, 0, own.scale(), rotated + row * width);
    const Matrix<E> queries = by_rows(rotated, rows, width, of_queries);
    for (int64_t block = blocks.begin(first); block < blocks.end(first + rows - 1); ++block) {
      const Sight sight = blocks.sight(numbers, first, rows, block);
      if (sight == Sight::kNothing) continue;
      const int64_t at = block * kKeys * width / kNumbers<E>;
      multiply<false>(queries, keys + at, kKeys, rows, kKeys, size / kNumbers<E>, scores, kKeys);
      if (sight == Sight::kSome) blocks.hide(first, rows, block, scores);
      // The largest of all rows first: each row's would wait for it.
      float most[kQueries];
      for (int row = 0; row < rows; ++row) {
        const float* of_row = scores + row * kKeys;
        float found = largest[row];
#pragma omp simd reduction(max : found)
        for (int i = 0; i < kKeys; ++i) found = of_row[i] > found ? of_row[i] : found;
        most[row] = found;
      }
      for (int row = 0; row < rows; ++row) {
        float *of_row = scores + row * kKeys, *sum = sums + row * width;
        const float maximum = most[row];
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int i = 0; i < kKeys; ++i) {
          of_row[i] = exponential(of_row[i] - maximum);
          total += of_row[i];
        }
        if (maximum != largest[row]) {
          const float share = exponential(largest[row] - maximum);
          totals[row] *= share;
#pragma omp simd
          for (int i = 0; i < width; ++i) sum[i] *= share;
        }
        largest[row] = maximum;
        totals[row] += total;
        if (dropout.dropped) drop(dropout, own.element(first + row, block * kKeys), of_row, nullptr);
      }
      const Matrix<E> weights = by_rows(scores, rows, kKeys, of_weights);
      multiply<true>(weights, values + at, width, rows, width, kKeys / kNumbers<E>, sums, width);
    }
    for (int row = 0; row < rows; ++row) {
      const bool is_token = ids[first + row] != 0;
      const float inverse = is_token ? 1.0f / totals[row] : 0.0f, *sum = sums + row * width;
      T* output = outputs + own.output(first + row);
      for (int i = 0; i < size; ++i) store(sum[i] * inverse, output + i);
      log_sums[first + row] = is_token ? largest[row] + std::log(totals[row]) : 0.0f;
    }
  }
}

template <typename T>
void RotaryAttention<T>::backward(
    int head, float* memory, const T* outputs, const float* log_sums, const T* upstream, T* products_gradient) const {
  using E = typename ElementOf<T>::Type;
  const Head<T> own(*this, head);
#if defined(__AMX_BF16__)
  const Tiles tiles;
#endif
  const int width = own.width;
  const Blocks blocks(ids, length, reach);
  const int64_t count = own.count();
  constexpr int kOfBlock = kQueries / kNumbers<E>;
  Space space{memory};
  auto *rows_of_all = space.take<float>(count), *queries = space.take<float>(kQueries * width);
  auto *given = space.take<float>(kQueries * width), *query_sums = space.take<float>(kQueries * width);
  auto *weights = space.take<float>(kQueries * kKeys), *slopes = space.take<float>(kQueries * kKeys);
  auto *key_sums = space.take<float>(count), *value_sums = space.take<float>(count);  // [blocks, width, kKeys]
  auto *value_columns = space.take<E>(count / kNumbers<E>), *key_columns = space.take<E>(count / kNumbers<E>);
  auto* room = space.take<E>(count / kNumbers<E>);
  auto *of_queries = space.take<E>(kOfBlock * width), *query_columns = space.take<E>(kOfBlock * width);
  auto *of_given = space.take<E>(kOfBlock * width), *given_columns = space.take<E>(kOfBlock * width);
  auto *of_weights = space.take<E>(kOfBlock * kKeys), *of_slopes = space.take<E>(kOfBlock * kKeys);
  own.read_all(2, rows_of_all);
  own.columns(rows_of_all, value_columns);
  own.read_all(1, rows_of_all);
  own.columns(rows_of_all, key_columns);
  const E* keys = by_columns(rows_of_all, static_cast<int>(count / width), width, room);
  std::fill(key_sums, key_sums + count, 0.0f);
  std::fill(value_sums, value_sums + count, 0.0f);
  float along[kQueries];
  log_sums += head * length;
  for (int64_t first = 0; first < length; first += kQueries) {
    const int rows = static_cast<int>(std::min<int64_t>(kQueries, length - first));
    const Numbers numbers(ids + first, rows, rows);
    std::fill(query_sums, query_sums + kQueries * width, 0.0f);
    std::fill(queries + rows * width, queries + kQueries * width, 0.0f);
    std::fill(given + rows * width, given + kQueries * width, 0.0f);
    for (int row = 0; row < rows; ++row) {
      own.read(first + row, 0, own.scale(), queries + row * width);
      const T *output = outputs + own.output(first + row), *from = upstream + own.output(first + row);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int i = 0; i < size; ++i) {
        const float gradient = to_float(from[i]);
        given[row * width + i] = gradient;
        sum += gradient * to_float(output[i]);
      }
      along[row] = sum;
    }
    const Matrix<E> query_rows = by_rows(queries, kQueries, width, of_queries);
    const Matrix<E> given_rows = by_rows(given, kQueries, width, of_given);
    const Matrix<E> turned_queries = transposed(queries, kQueries, width, query_columns);
    const Matrix<E> turned_given = transposed(given, kQueries, width, given_columns);
    for (int64_t block = blocks.begin(first); block < blocks.end(first + rows - 1); ++block) {
      const Sight sight = blocks.sight(numbers, first, rows, block);
      if (sight == Sight::kNothing) continue;
      const int64_t at = block * kKeys * width, of_block = at / kNumbers<E>;
      const int depth = size / kNumbers<E>, row_depth = (rows + kNumbers<E> - 1) / kNumbers<E>;
      multiply<false>(query_rows, key_columns + of_block, kKeys, rows, kKeys, depth, weights, kKeys);
      if (sight == Sight::kSome) blocks.hide(first, rows, block, weights);
      multiply<false>(given_rows, value_columns + of_block, kKeys, rows, kKeys, depth, slopes, kKeys);
      for (int row = 0; row < rows; ++row) {
        float *weight = weights + row * kKeys, *slope = slopes + row * kKeys;
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
      std::fill(weights + rows * kKeys, weights + kQueries * kKeys, 0.0f);
      std::fill(slopes + rows * kKeys, slopes + kQueries * kKeys, 0.0f);
      const Matrix<E> slope_rows = by_rows(slopes, kQueries, kKeys, of_slopes);
      multiply<true>(slope_rows, keys + of_block, width, rows, width, kKeys / kNumbers<E>, query_sums, width);
      const E* pairs = by_columns(slopes, kQueries, kKeys, of_slopes);
      multiply<true>(turned_queries, pairs, kKeys, width, kKeys, row_depth, key_sums + at, kKeys);
      pairs = by_columns(weights, kQueries, kKeys, of_weights);
      multiply<true>(turned_given, pairs, kKeys, width, kKeys, row_depth, value_sums + at, kKeys);
    }
    for (int row = 0; row < rows; ++row)
      own.write(first + row, 0, own.scale(), query_sums + row * width, products_gradient);
  }
  for (int part : {1, 2}) {
    for (int64_t first = 0; first < length; first += kKeys) {
      float* rows = queries;
      transpose((part == 1 ? key_sums : value_sums) + first * width, width, kKeys, rows);
      for (int64_t token = first; token < std::min(length, first + kKeys); ++token, rows += width)
        own.write(token, part, 1.0f, rows, products_gradient);
    }
  }
}

template struct RotaryAttention<float>;
template struct RotaryAttention<BFloat16>;

}  // namespace bert
