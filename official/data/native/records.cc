// Encodes records of pre-training data as in a file: plain tf.train.Examples in TFRecord frames.
// Does not need TensorFlow. The bytes are those of official/data/records/encoding.py, which documents the
// format of examples, and of TensorFlow's writer.

#include <cstdint>
#include <cstring>

#if defined(__SSE4_2__) && defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace {

constexpr uint32_t kLimit = 1u << 21;  // end of the integers whose varint has at most three bytes
constexpr int kLengthBytes = 8, kChecksumBytes = 4;
constexpr uint8_t kField1 = 0x0a, kField2 = 0x12;  // tags of length-delimited fields
constexpr uint8_t kFloats = 0x12, kIntegers = 0x1a;  // the lists of a Feature

// Continues a CRC-32C (Castagnoli) over a byte, and over the eight bytes of a little-endian word.
#if defined(__SSE4_2__) && defined(__x86_64__)
inline uint32_t AddByte(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
inline uint32_t AddWord(uint32_t crc, uint64_t word) { return static_cast<uint32_t>(_mm_crc32_u64(crc, word)); }
#elif defined(__ARM_FEATURE_CRC32)
inline uint32_t AddByte(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }
inline uint32_t AddWord(uint32_t crc, uint64_t word) { return __crc32cd(crc, word); }
#else
struct Table {
  uint32_t of[256];
  Table() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
      of[byte] = crc;
    }
  }
};
inline uint32_t AddByte(uint32_t crc, uint8_t byte) {
  static const Table table;
  return (crc >> 8) ^ table.of[(crc ^ byte) & 0xff];
}
inline uint32_t AddWord(uint32_t crc, uint64_t word) {
  for (int byte = 0; byte < 8; ++byte) crc = AddByte(crc, word >> (8 * byte));
  return crc;
}
#endif

inline uint32_t Crc32c(const uint8_t* data, uint64_t n) {
  uint32_t crc = 0xffffffffu;
  for (; n >= 8; data += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    crc = AddWord(crc, word);
  }
  for (; n; ++data, --n) crc = AddByte(crc, *data);
  return ~crc;
}

// TFRecords store checksums rotated and with a constant added, so that a file of checksums can be checked, too.
inline void PutChecksum(uint8_t* place, const uint8_t* data, uint64_t n) {
  const uint32_t crc = Crc32c(data, n);
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  for (int byte = 0; byte < kChecksumBytes; ++byte) place[byte] = masked >> (8 * byte);
}

// Writes length and checksums around n bytes of data at `frame` + kLengthBytes + kChecksumBytes. Returns the end
// of the frame.
inline uint8_t* PutFrame(uint8_t* frame, uint64_t n) {
  for (int byte = 0; byte < kLengthBytes; ++byte) frame[byte] = n >> (8 * byte);
  PutChecksum(frame + kLengthBytes, frame, kLengthBytes);
  uint8_t* data = frame + kLengthBytes + kChecksumBytes;
  PutChecksum(data + n, data, n);
  return data + n + kChecksumBytes;
}

inline int VarintBytes(uint64_t value) {
  int bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

inline uint8_t* PutVarint(uint8_t* place, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *place++ = value | 0x80;
  *place++ = value;
  return place;
}

// For values below kLimit, without branches. Always writes four bytes; returns the end of the varint.
inline uint8_t* PutShortVarint(uint8_t* place, uint32_t value) {
  const uint32_t second = value >= 1u << 7, third = value >= 1u << 14;
  const uint32_t word = (value & 0x7f) | second << 7 | (value >> 7 & 0x7f) << 8 | third << 15 | (value >> 14) << 16;
  for (int byte = 0; byte < 4; ++byte) place[byte] = word >> (8 * byte);  // one store on any byte order
  return place + 1 + second + third;
}

template <typename Value>
inline uint64_t VarintsBytes(const Value* values, int64_t count) {
  uint64_t bytes = count;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t value = static_cast<uint32_t>(values[i]);
    bytes += (value >= 1u << 7) + (value >= 1u << 14);
  }
  return bytes;
}

template <typename Value>
inline uint8_t* PutVarints(uint8_t* place, const Value* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) place = PutShortVarint(place, static_cast<uint32_t>(values[i]));
  return place;
}

template <typename Value>
inline bool AreBelowLimit(const Value* values, int64_t count) {
  uint32_t highest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t value = static_cast<uint32_t>(values[i]);  // negative values become large
    highest = value > highest ? value : highest;
  }
  return highest < kLimit;
}

// A feature of an Example whose values take `payload` bytes; writes the bytes before the values.
class Feature {
 public:
  Feature(const char* name, uint8_t kind, uint64_t payload) : name_(name), kind_(kind), payload_(payload) {
    values_ = payload ? 1 + VarintBytes(payload) + payload : 0;
    list_ = 1 + VarintBytes(values_) + values_;
    name_bytes_ = std::strlen(name);
    entry_ = 1 + VarintBytes(name_bytes_) + name_bytes_ + 1 + VarintBytes(list_) + list_;
  }
  uint64_t bytes() const { return 1 + VarintBytes(entry_) + entry_; }
  uint8_t* PutHead(uint8_t* place) const {
    *place++ = kField1;
    place = PutVarint(place, entry_);
    *place++ = kField1;
    place = PutVarint(place, name_bytes_);
    std::memcpy(place, name_, name_bytes_);
    place += name_bytes_;
    *place++ = kField2;
    place = PutVarint(place, list_);
    *place++ = kind_;
    place = PutVarint(place, values_);
    if (!payload_) return place;
    *place++ = kField1;
    return PutVarint(place, payload_);
  }

 private:
  const char* name_;
  uint8_t kind_;
  uint64_t payload_, values_, list_, entry_, name_bytes_;
};

struct Shape {
  int64_t length, predictions;
};

// Writes one example as a frame. Returns its end.
template <typename Id>
uint8_t* PutExample(uint8_t* frame, Shape shape, const Id* ids, const int32_t* positions, const int32_t* labels,
                    int64_t tokens, int64_t first_tokens, int64_t predicted, bool is_random) {
  const Feature input_ids("input_ids", kIntegers, VarintsBytes(ids, shape.length));
  const Feature input_mask("input_mask", kIntegers, shape.length);
  const Feature masked_ids("masked_lm_ids", kIntegers, VarintsBytes(labels, shape.predictions));
  const Feature masked_positions("masked_lm_positions", kIntegers, VarintsBytes(positions, shape.predictions));
  const Feature masked_weights("masked_lm_weights", kFloats, 4 * shape.predictions);
  const Feature next_labels("next_sentence_labels", kIntegers, 1);
  const Feature segment_ids("segment_ids", kIntegers, shape.length);
  uint8_t* const begin = frame + kLengthBytes + kChecksumBytes;
  uint8_t* place = begin;
  *place++ = kField1;
  place = PutVarint(place, input_ids.bytes() + input_mask.bytes() + masked_ids.bytes() + masked_positions.bytes() +
                               masked_weights.bytes() + next_labels.bytes() + segment_ids.bytes());
  place = PutVarints(input_ids.PutHead(place), ids, shape.length);
  place = input_mask.PutHead(place);
  std::memset(place, 1, tokens);
  std::memset(place + tokens, 0, shape.length - tokens);
  place += shape.length;
  place = PutVarints(masked_ids.PutHead(place), labels, shape.predictions);
  place = PutVarints(masked_positions.PutHead(place), positions, shape.predictions);
  place = masked_weights.PutHead(place);
  std::memset(place, 0, 4 * shape.predictions);
  for (int64_t i = 0; i < predicted; ++i) {  // 1.0f, little-endian
    place[4 * i + 2] = 0x80;
    place[4 * i + 3] = 0x3f;
  }
  place += 4 * shape.predictions;
  place = next_labels.PutHead(place);
  *place++ = is_random;
  place = segment_ids.PutHead(place);
  std::memset(place, 0, shape.length);
  if (tokens > first_tokens) std::memset(place + first_tokens, 1, tokens - first_tokens);
  return PutFrame(frame, place + shape.length - begin);
}

template <typename Id>
int64_t PutExamples(uint8_t* out, int64_t count, Shape shape, const Id* ids, const int64_t* tokens,
                    const int64_t* first_tokens, const int32_t* positions, const int32_t* labels,
                    const int64_t* predicted, const uint8_t* is_random) {
  if (!AreBelowLimit(ids, count * shape.length) || !AreBelowLimit(positions, count * shape.predictions) ||
      !AreBelowLimit(labels, count * shape.predictions)) {
    return -1;
  }
  uint8_t* place = out;
  for (int64_t n = 0; n < count; ++n) {
    const bool fits = 0 <= first_tokens[n] && first_tokens[n] <= shape.length && 0 <= tokens[n] &&
                      tokens[n] <= shape.length && 0 <= predicted[n] && predicted[n] <= shape.predictions;
    if (!fits) return -1;
    place = PutExample(place, shape, ids + n * shape.length, positions + n * shape.predictions,
                       labels + n * shape.predictions, tokens[n], first_tokens[n], predicted[n], is_random[n] != 0);
  }
  return place - out;
}

}  // namespace

extern "C" {

// Frames `count` consecutive records in `data`, with their sizes in bytes. `out` has room for them and 16 more
// bytes for each. Returns the number of written bytes.
int64_t put_frames(uint8_t* out, int64_t count, const uint8_t* data, const int64_t* sizes) {
  uint8_t* place = out;
  for (int64_t n = 0; n < count; ++n) {
    std::memcpy(place + kLengthBytes + kChecksumBytes, data, sizes[n]);
    data += sizes[n];
    place = PutFrame(place, sizes[n]);
  }
  return place - out;
}

// Writes `count` examples as frames of plain records; `id_bytes` is 2 (uint16) or 4 (int32). `out` has room for
// `plain_bytes` each. Returns the number of written bytes, or -1 if a value is out of range.
int64_t put_plain_records(uint8_t* out, int64_t count, int64_t length, int64_t predictions, int64_t id_bytes,
                          const void* ids, const int64_t* tokens, const int64_t* first_tokens,
                          const int32_t* positions, const int32_t* labels, const int64_t* predicted,
                          const uint8_t* is_random) {
  const Shape shape = {length, predictions};
  if (id_bytes == 2) {
    return PutExamples(out, count, shape, static_cast<const uint16_t*>(ids), tokens, first_tokens, positions, labels,
                       predicted, is_random);
  }
  return PutExamples(out, count, shape, static_cast<const int32_t*>(ids), tokens, first_tokens, positions, labels,
                     predicted, is_random);
}

// Maximum size of a frame of `put_plain_records`, plus a few bytes that are written beyond its end.
int64_t plain_bytes(int64_t length, int64_t predictions) {
  const int64_t heads = 7 * 48;  // names of up to 20 letters, tags and lengths
  return kLengthBytes + 2 * kChecksumBytes + 11 + heads + 5 * length + 10 * predictions + 1 + 4;
}

}  // extern "C"
