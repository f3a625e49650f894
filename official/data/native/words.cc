// Words of a text -> ids, by the tables of official/data/word_pieces/tokenization.py, which says what a word is.

#include <cstdint>
#include <cstring>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the keys of words are made for machines whose lowest byte is the first"
#endif

namespace {

constexpr uint64_t kNoKey = ~uint64_t{0};
constexpr int64_t kKeyBytes = 16;

// The classes of a byte, as in tokenization.py.
enum Class : uint8_t { kWhite = 0, kPart = 1, kAlone = 2 };

struct Key {
  uint64_t first, second;
};

inline uint64_t Bytes(const uint8_t* text, int64_t count) {
  uint64_t word = 0;
  std::memcpy(&word, text, count);  // the lowest byte first, as word_table.py has it
  return word;
}

// The bytes of a word as two numbers.
inline Key KeyOf(const uint8_t* text, int64_t length) {
  if (length > kKeyBytes) return {kNoKey, kNoKey};
  if (length > 8) return {Bytes(text, 8), Bytes(text + 8, length - 8)};
  return {Bytes(text, length), 0};
}

struct Tables {
  int64_t places, most_pieces;
  int shift;
  uint64_t factors[2];
  const uint64_t *whole_keys, *piece_keys;  // [2, places]
  const int64_t* piece_counts;              // [places]
};

struct Word {
  int64_t start, end;
  Key key;
  uint64_t place;
};

// Looks words up, some at a time: the memory brings what each needs while the next ones are read.
template <typename Id>
class Finder {
 public:
  Finder(const uint8_t* text, const Tables& tables, const Id* whole_ids, const Id* piece_ids, Id none, Id* ids,
         int64_t* others, int64_t* starts, int64_t* ends)
      : text_(text), tables_(tables), whole_ids_(whole_ids), piece_ids_(piece_ids), none_(none), ids_(ids),
        others_(others), starts_(starts), ends_(ends) {}

  void Add(int64_t start, int64_t end) {
    Word& word = waiting_[number_++];
    word = {start, end, KeyOf(text_ + start, end - start), 0};
    word.place = (word.key.first * tables_.factors[0] ^ word.key.second * tables_.factors[1]) >> tables_.shift;
    __builtin_prefetch(tables_.whole_keys + word.place);
    __builtin_prefetch(tables_.whole_keys + tables_.places + word.place);
    __builtin_prefetch(whole_ids_ + word.place);
    if (number_ == kWaiting) Finish();
  }

  // Looks up the words that wait.
  void Finish() {
    for (int64_t i = 0; i < number_; ++i) Put(waiting_[i]);
    number_ = 0;
  }

  int64_t count() const { return count_; }
  int64_t other_count() const { return other_count_; }

 private:
  static constexpr int64_t kWaiting = 32;

  // Adds the ids of a word, or `none` where it is in no table.
  void Put(const Word& word) {
    const uint64_t place = word.place;
    if (Holds(tables_.whole_keys, word)) {
      ids_[count_++] = whole_ids_[place];
      return;
    }
    if (Holds(tables_.piece_keys, word)) {
      const Id* pieces = piece_ids_ + place * tables_.most_pieces;
      for (int64_t i = 0; i < tables_.piece_counts[place]; ++i) ids_[count_++] = pieces[i];
      return;
    }
    others_[other_count_] = count_;
    starts_[other_count_] = word.start;
    ends_[other_count_++] = word.end;
    ids_[count_++] = none_;
  }

  bool Holds(const uint64_t* keys, const Word& word) const {
    return keys[word.place] == word.key.first && keys[tables_.places + word.place] == word.key.second;
  }

  const uint8_t* text_;
  const Tables& tables_;
  const Id *whole_ids_, *piece_ids_;
  const Id none_;
  Id* ids_;
  int64_t *others_, *starts_, *ends_;
  int64_t count_ = 0, other_count_ = 0, number_ = 0;
  Word waiting_[kWaiting];
};

template <typename Id>
void Find(const uint8_t* text, int64_t length, const uint8_t* classes, Finder<Id>* out) {
  int64_t start = 0;
  while (start < length) {
    if (text[start] == ' ') {
      ++start;
      continue;
    }
    if (text[start] == '\n') {
      out->Add(start, start + 1);
      ++start;
      continue;
    }
    // A chunk ends at white space. One that is not all ASCII is one word.
    int64_t end = start;
    uint8_t bits = 0;
    for (; end < length && text[end] != ' ' && text[end] != '\n'; ++end) bits |= text[end];
    if (bits & 0x80) {
      out->Add(start, end);
      start = end;
      continue;
    }
    while (start < end) {
      int64_t behind = start + 1;
      if (classes[text[start]] == kPart) {
        while (behind < end && classes[text[behind]] == kPart) ++behind;
      }
      out->Add(start, behind);
      start = behind;
    }
  }
  out->Finish();
}

template <typename Id>
int64_t FindIds(const uint8_t* text, int64_t length, const uint8_t* classes, const Tables& tables,
                const void* whole_ids, const void* piece_ids, int64_t none, void* ids, int64_t* others) {
  Finder<Id> found(text, tables, static_cast<const Id*>(whole_ids), static_cast<const Id*>(piece_ids),
                   static_cast<Id>(none), static_cast<Id*>(ids), others, others + length, others + 2 * length);
  Find(text, length, classes, &found);
  others[3 * length] = found.other_count();
  return found.count();
}

}  // namespace

extern "C" {

// Finds the ids of all words of a text.
//   id_bytes: 2 (uint16) or 4 (int32).
//   bits: the tables have 2^bits places.
//   none: the id for a word that is in no table.
//   header: the two factors of the tables, and how many ids a place of the second one holds at most.
//   classes: [256], of each byte.
//   whole_keys, whole_ids: the table of words that are one piece; piece_keys, piece_ids, piece_counts: of others.
//   out: with room for as many ids as a place holds for each byte of the text.
//   others: with room for 3 * length + 1 numbers. Of the words that are in no table: where their ids are, from
//     others[0] on, where the words begin, from others[length] on, and where they end, from others[2 * length]
//     on; others[3 * length] is how many they are.
// Returns the number of ids.
int64_t find_ids(const uint8_t* text, int64_t length, int64_t id_bytes, int64_t bits, int64_t none,
                 const uint64_t* header, const uint8_t* classes, const uint64_t* whole_keys, const void* whole_ids,
                 const uint64_t* piece_keys, const void* piece_ids, const int64_t* piece_counts, void* out,
                 int64_t* others) {
  const Tables tables = {int64_t{1} << bits, static_cast<int64_t>(header[2]), static_cast<int>(64 - bits),
                         {header[0], header[1]}, whole_keys, piece_keys, piece_counts};
  const auto find = id_bytes == 2 ? FindIds<uint16_t> : FindIds<int32_t>;
  return find(text, length, classes, tables, whole_ids, piece_ids, none, out, others);
}

}  // extern "C"
