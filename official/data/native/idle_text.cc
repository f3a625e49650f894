// The parts of a text that the sentence splitter need not see; official/data/text/idle_text.py says which.

#include <cstdint>
#include <cstring>

extern "C" {

// Finds the idle parts of a text.
//   classes: [256], of each byte: 0 for what may end a sentence, 1 for punctuation, 2 for letters.
//   sizes: as in idle_text.py: bytes kept behind an end and before one, the least of a part, the bytes in which a
//     blank is looked for, and the punctuation that makes an end of what follows each other.
//   firsts, lasts: with room for length / least + 1 numbers each: where the parts begin and end.
// Returns the number of parts.
int64_t idle_parts(const uint8_t* text, int64_t length, const uint8_t* classes, const int64_t* sizes, int64_t* firsts,
                   int64_t* lasts) {
  const int64_t behind_bytes = sizes[0], before_bytes = sizes[1], least = sizes[2], word = sizes[3], most = sizes[4];
  int64_t parts = 0, end = -1, punctuation = 0;
  // Called for each end in the text, and for the place behind the text.
  const auto found = [&](int64_t next) {
    if (next - end > behind_bytes + before_bytes + least) {
      const int64_t behind = end + behind_bytes, before = next - before_bytes;
      const void* first = behind + word <= length ? std::memchr(text + behind, ' ', word) : nullptr;
      const void* last = before >= word ? memrchr(text + before - word, ' ', word) : nullptr;
      if (first && last) {
        const int64_t begin = static_cast<const uint8_t*>(first) - text + 1;
        const int64_t stop = static_cast<const uint8_t*>(last) - text;
        if (stop - begin >= least) {
          firsts[parts] = begin;
          lasts[parts++] = stop;
        }
      }
    }
    end = next;
  };
  for (int64_t place = 0; place < length; ++place) {
    const uint8_t kind = classes[text[place]];
    if (kind == 2) {
      punctuation = 0;
    } else if (kind == 0) {
      punctuation = 0;
      found(place);
    } else if (++punctuation == most) {
      for (int64_t back = most - 1; back >= 0; --back) found(place - back);
      punctuation = 0;
    }
  }
  found(length);
  return parts;
}

}  // extern "C"
