// Converts words of a text to ids, with the table and the classes of bytes of official/data/word_pieces/wordpiece.py.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the keys of words are made for machines whose lowest byte is the first"
#endif

namespace {

// The table: 2^kBits buckets of kPlaces words, each of at most kMaxIds ids; as in wordpiece.py.
constexpr int64_t kBits = 15, kPlaces = 4, kMaxIds = 7;
constexpr uint64_t kNoKey = ~uint64_t{0};  // not the key of a word: UTF-8 has no such byte
constexpr int64_t kKeyBytes = 16;
constexpr uint64_t kFactors[2] = {0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F};  // odd, with random-looking bits

// The classes of a byte, as in wordpiece.py.
enum Class : uint8_t { kWhite = 0, kPart = 1, kAlone = 2 };

constexpr int64_t kBlock = 64;  // bytes of the text, one per bit of a mask

struct Key {
  uint64_t first, second;
};

// Returns a mask of the first `count` bytes of eight.
constexpr uint64_t FirstBytes(int64_t count) {
  return count <= 0 ? 0 : count >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * count)) - 1;
}

struct Masks {
  Key of[kKeyBytes + 1];
  constexpr Masks() : of() {
    for (int64_t length = 0; length <= kKeyBytes; ++length) of[length] = {FirstBytes(length), FirstBytes(length - 8)};
  }
};

constexpr Masks kMasks;

inline uint64_t Eight(const uint8_t* text) {
  uint64_t word;
  std::memcpy(&word, text, 8);  // little-endian
  return word;
}

// Returns the bytes of a word as two numbers; kNoKey for a word that is too long.
inline Key KeyOf(const uint8_t* text, int64_t length, int64_t start, int64_t end) {
  if (end - start > kKeyBytes) return {kNoKey, kNoKey};
  const Key& mask = kMasks.of[end - start];
  const uint8_t* word = text + start;
  uint8_t last[kKeyBytes] = {};
  if (start + kKeyBytes > length) {
    std::memcpy(last, word, length - start);
    word = last;
  }
  return {Eight(word) & mask.first, Eight(word + 8) & mask.second};
}

// Returns the first place of the bucket of a word.
inline int64_t PlaceOf(const Key& key) {
  return (key.first * kFactors[0] ^ key.second * kFactors[1]) >> (64 - kBits) << 2;
}
static_assert(kPlaces == 4, "a bucket is found by a shift");

struct Word {
  int64_t start, end;
  Key key;
  int64_t place;  // first place of its bucket
};

// Looks up words in batches, so that the table's entries are prefetched while the next words are read.
template <typename Id>
class Finder {
 public:
  Finder(const uint8_t* text, int64_t length, const Key* keys, const Id* table_ids, Id none, Id* ids, int64_t* others,
         int64_t* starts, int64_t* ends)
      : text_(text), length_(length), keys_(keys), table_ids_(table_ids), none_(none), ids_(ids), others_(others),
        starts_(starts), ends_(ends) {}

  // Inlined: a function call makes the look-up a third slower.
  [[gnu::always_inline]] void Add(int64_t start, int64_t end) {
    const Key key = KeyOf(text_, length_, start, end);
    const int64_t place = PlaceOf(key);
    waiting_[number_++] = {start, end, key, place};
    __builtin_prefetch(keys_ + place);
    __builtin_prefetch(table_ids_ + place * (1 + kMaxIds));
    if (number_ == kWaiting) Finish();
  }

  // Looks up the waiting words.
  void Finish() {
    for (int64_t i = 0; i < number_; ++i) Put(waiting_[i]);
    number_ = 0;
  }

  int64_t count() const { return count_; }
  int64_t other_count() const { return other_count_; }

 private:
  static constexpr int64_t kWaiting = 32;

  // Adds the ids of a word, or `none` if it is missing in the table.
  void Put(const Word& word) {
    unsigned hits = 0;  // one bit per place: branches would often be mispredicted
    for (int64_t i = 0; i < kPlaces; ++i) {
      const Key& key = keys_[word.place + i];
      hits |= static_cast<unsigned>((key.first == word.key.first) & (key.second == word.key.second)) << i;
    }
    if (hits) {
      const Id* found = table_ids_ + (word.place + __builtin_ctz(hits)) * (1 + kMaxIds);
      std::memcpy(ids_ + count_, found + 1, kMaxIds * sizeof(Id));  // surplus ids are overwritten by the next word
      count_ += found[0];
      return;
    }
    others_[other_count_] = count_;
    starts_[other_count_] = word.start;
    ends_[other_count_++] = word.end;
    ids_[count_++] = none_;
  }

  const uint8_t* text_;
  const int64_t length_;
  const Key* keys_;
  const Id* table_ids_;
  const Id none_;
  Id* ids_;
  int64_t *others_, *starts_, *ends_;
  int64_t count_ = 0, other_count_ = 0, number_ = 0;
  Word waiting_[kWaiting];
};

// Adds the words of a part of the text that is all ASCII, between white space.
template <typename Id>
void AddWords(const uint8_t* text, int64_t begin, int64_t end, const uint8_t* classes, Finder<Id>* out) {
  int64_t start = -1;  // start of the current word, if any
  for (int64_t place = begin; place < end; place += kBlock) {
    const int64_t size = std::min(end - place, kBlock);
    uint64_t part = 0, alone = 0;
    for (int64_t i = 0; i < size; ++i) {
      const uint8_t kind = classes[text[place + i]];
      part |= static_cast<uint64_t>(kind == kPart) << i;
      alone |= static_cast<uint64_t>(kind == kAlone) << i;
    }
    // Positions where a word begins, or the previous one has ended.
    uint64_t changes = (part ^ (part << 1 | (start >= 0))) | alone;
    if (size < kBlock) changes &= (uint64_t{1} << size) - 1;
    for (; changes; changes &= changes - 1) {
      const int64_t bit = __builtin_ctzll(changes);
      if (start >= 0) out->Add(start, place + bit);
      start = part >> bit & 1 ? place + bit : -1;
      if (alone >> bit & 1) out->Add(place + bit, place + bit + 1);
    }
  }
  if (start >= 0) out->Add(start, end);
}

// Returns the position of the next byte that is not ASCII, or `length`.
int64_t NextForeign(const uint8_t* text, int64_t place, int64_t length) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  while (place + 8 <= length && !(Eight(text + place) & kHighBits)) place += 8;
  while (place < length && text[place] < 0x80) ++place;
  return place;
}

template <typename Id>
void Find(const uint8_t* text, int64_t length, const uint8_t* classes, Finder<Id>* out) {
  const auto is_white = [&](int64_t place) { return text[place] == ' ' || text[place] == '\n'; };
  for (int64_t done = 0; done < length;) {
    // A chunk between white space that is not all ASCII is one word.
    const int64_t foreign = NextForeign(text, done, length);
    int64_t begin = foreign, end = foreign;
    if (foreign < length) {
      while (begin > done && !is_white(begin - 1)) --begin;
      while (end < length && !is_white(end)) ++end;
    }
    AddWords(text, done, begin, classes, out);
    if (end > begin) out->Add(begin, end);
    done = end;
  }
  out->Finish();
}

template <typename Id>
void AddWordsToTable(const uint8_t* text, int64_t length, int64_t count, Key* keys, Id* table_ids,
                     const int64_t* starts, const int64_t* ends, const int64_t* counts, const Id* ids) {
  for (int64_t n = 0; n < count; ids += counts[n++]) {
    const Key key = KeyOf(text, length, starts[n], ends[n]);
    if (counts[n] > kMaxIds || key.first == kNoKey) continue;
    const int64_t first = PlaceOf(key);
    for (int64_t place = first; place < first + kPlaces; ++place) {
      if (keys[place].first == key.first && keys[place].second == key.second) break;
      if (keys[place].first) continue;
      Id* own = table_ids + place * (1 + kMaxIds);
      own[0] = static_cast<Id>(counts[n]);
      std::memcpy(own + 1, ids, counts[n] * sizeof(Id));
      keys[place].second = key.second;
      std::atomic_thread_fence(std::memory_order_release);  // other threads only see complete words
      keys[place].first = key.first;
      break;
    }
  }
}

template <typename Id>
void FindIds(const uint8_t* text, int64_t length, const void* keys, const void* table_ids, int64_t none,
             const uint8_t* classes, void* ids, int64_t* others, int64_t* starts, int64_t* ends, int64_t* counts) {
  Finder<Id> found(text, length, static_cast<const Key*>(keys), static_cast<const Id*>(table_ids),
                   static_cast<Id>(none), static_cast<Id*>(ids), others, starts, ends);
  Find(text, length, classes, &found);
  counts[0] = found.count();
  counts[1] = found.other_count();
}

template <typename Id>
int64_t PutIds(const Id* found, int64_t count, Id end, int64_t num_others, const int64_t* others, const Id* other_ids,
               const int64_t* other_counts, Id* tokens, int64_t* lengths) {
  int64_t made = 0, line = 0, begin = 0, next = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (next < num_others && others[next] == i) {
      const int64_t own = other_counts[next++];
      std::memcpy(tokens + made, other_ids, own * sizeof(Id));
      other_ids += own;
      made += own;
    } else if (found[i] == end) {
      lengths[line++] = made - begin;
      begin = made;
    } else {
      tokens[made++] = found[i];
    }
  }
  return made;
}

}  // namespace

extern "C" {

// Adds words to the table if their buckets have free places.
//   id_bytes: 2 (uint16) or 4 (int32).
//   keys, table_ids: for all places of the table; table_ids has the number of ids, then the ids.
//   starts, ends: [count], positions of the words in the text.
//   counts, ids: number of ids of each word, and the concatenated ids.
int64_t add_words(const uint8_t* text, int64_t length, int64_t count, int64_t id_bytes, void* keys, void* table_ids,
                  const int64_t* starts, const int64_t* ends, const int64_t* counts, const void* ids) {
  Key* own = static_cast<Key*>(keys);
  if (id_bytes == 2) {
    AddWordsToTable(text, length, count, own, static_cast<uint16_t*>(table_ids), starts, ends, counts,
                    static_cast<const uint16_t*>(ids));
  } else {
    AddWordsToTable(text, length, count, own, static_cast<int32_t*>(table_ids), starts, ends, counts,
                    static_cast<const int32_t*>(ids));
  }
  return 0;
}

// Finds the ids of all words of a text.
//   id_bytes, keys, table_ids: as of add_words.
//   none: the id for a missing word.
//   classes: [256], class of each byte.
//   ids: output, with room for an id per byte of the text, and kMaxIds more.
//   others, starts, ends: output, for the missing words: the position among the ids, and start and end in the text;
//     with room for a number per byte of the text.
//   counts: output, the number of ids and of missing words.
int64_t find_ids(const uint8_t* text, int64_t length, int64_t id_bytes, const void* keys, const void* table_ids,
                 int64_t none, const uint8_t* classes, void* ids, int64_t* others, int64_t* starts, int64_t* ends,
                 int64_t* counts) {
  const auto find = id_bytes == 2 ? FindIds<uint16_t> : FindIds<int32_t>;
  find(text, length, keys, table_ids, none, classes, ids, others, starts, ends, counts);
  return 0;
}

// Inserts the ids of words that are missing in the table, and removes the ends of lines.
//   found: the `count` ids of find_ids.
//   end: the id of an end of a line.
//   others: [num_others], positions of missing words in `found`, ascending.
//   other_ids, other_counts: the concatenated ids of these words, and their numbers.
//   tokens: output, ids of all lines, with room for `count` and all other_ids.
//   lengths: output, number of ids of each line, with room for all lines.
// Returns the number of tokens.
int64_t put_ids(const void* found, int64_t count, int64_t id_bytes, int64_t end, int64_t num_others,
                const int64_t* others, const void* other_ids, const int64_t* other_counts, void* tokens,
                int64_t* lengths) {
  if (id_bytes == 2) {
    return PutIds(static_cast<const uint16_t*>(found), count, static_cast<uint16_t>(end), num_others, others,
                  static_cast<const uint16_t*>(other_ids), other_counts, static_cast<uint16_t*>(tokens), lengths);
  }
  return PutIds(static_cast<const int32_t*>(found), count, static_cast<int32_t>(end), num_others, others,
                static_cast<const int32_t*>(other_ids), other_counts, static_cast<int32_t*>(tokens), lengths);
}

}  // extern "C"
