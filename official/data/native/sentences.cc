// Text before and behind the sentence splitter: the parts of it that need not be seen, which idle_text.py
// describes, and the paragraphs that went through it together, which joined_paragraphs.py describes.

#include <cstdint>
#include <cstring>

namespace {

// Copies the bytes from `begin` up to `end` and returns where the copy ends.
inline uint8_t* Copy(const uint8_t* begin, const uint8_t* end, uint8_t* out) {
  std::memcpy(out, begin, end - begin);
  return out + (end - begin);
}

// Finds idle parts: called for each end in the text, from left to right.
class Parts {
 public:
  Parts(const uint8_t* text, int64_t length, const int64_t* sizes, int64_t* firsts, int64_t* lasts)
      : text_(text), length_(length), behind_bytes_(sizes[0]), before_bytes_(sizes[1]), least_(sizes[2]), word_(sizes[3]),
        firsts_(firsts), lasts_(lasts) {}

  void Found(int64_t end) {
    if (end - last_end_ > behind_bytes_ + before_bytes_ + least_) {
      const int64_t behind = last_end_ + behind_bytes_, before = end - before_bytes_;
      const void* first = behind + word_ <= length_ ? std::memchr(text_ + behind, ' ', word_) : nullptr;
      const void* last = before >= word_ ? memrchr(text_ + before - word_, ' ', word_) : nullptr;
      if (first && last) {
        const int64_t begin = static_cast<const uint8_t*>(first) - text_ + 1;
        const int64_t stop = static_cast<const uint8_t*>(last) - text_;
        if (stop - begin >= least_) {
          firsts_[count_] = begin;
          lasts_[count_++] = stop;
        }
      }
    }
    last_end_ = end;
  }

  int64_t count() const { return count_; }

 private:
  const uint8_t* text_;
  const int64_t length_, behind_bytes_, before_bytes_, least_, word_;
  int64_t *firsts_, *lasts_;
  int64_t last_end_ = -1, count_ = 0;
};

}  // namespace

extern "C" {

// Finds the idle parts of a text and writes the text with a mark for each.
//   classes: [256], of each byte: 0 for what may end a sentence, 1 for punctuation, 2 for letters.
//   sizes: as in idle_text.py: bytes kept behind an end and before one, the least of a part, the bytes in which a
//     blank is looked for, and the punctuation that makes an end of what follows each other.
//   kept: with room for the text; a part is longer than the mark.
//   firsts, lasts: with room for length / least + 1 numbers each: where the parts begin and end.
// Returns the number of parts.
int64_t take_out(const uint8_t* text, int64_t length, const uint8_t* mark, int64_t mark_bytes, const uint8_t* classes,
                 const int64_t* sizes, uint8_t* kept, int64_t* firsts, int64_t* lasts) {
  Parts parts(text, length, sizes, firsts, lasts);
  const int64_t most = sizes[4];
  int64_t punctuation = 0;
  for (int64_t place = 0; place < length; ++place) {
    const uint8_t kind = classes[text[place]];
    punctuation = kind == 1 ? punctuation + 1 : 0;
    if (kind == 0) {
      parts.Found(place);
    } else if (punctuation == most) {
      for (int64_t back = most - 1; back >= 0; --back) parts.Found(place - back);
      punctuation = 0;
    }
  }
  parts.Found(length);
  int64_t done = 0;
  for (int64_t part = 0; part < parts.count(); ++part) {
    kept = Copy(text + done, text + firsts[part], kept);
    kept = Copy(mark, mark + mark_bytes, kept);
    done = lasts[part];
  }
  Copy(text + done, text + length, kept);
  return parts.count();
}

// Writes a text with idle parts in the places of its marks.
//   source, firsts, lasts: the text that has the parts, and where they begin and end.
//   out: with room for the text without its marks and for the parts.
// Returns the bytes written; -1 where there are fewer marks than parts, or more.
int64_t put_back(const uint8_t* text, int64_t length, const uint8_t* mark, int64_t mark_bytes, const uint8_t* source,
                 int64_t parts, const int64_t* firsts, const int64_t* lasts, uint8_t* out) {
  const uint8_t *end = text + length, *begin = out;
  for (int64_t part = 0; part <= parts; ++part) {
    const auto* found = static_cast<const uint8_t*>(memmem(text, end - text, mark, mark_bytes));
    if ((found != nullptr) != (part < parts)) return -1;
    out = Copy(text, found ? found : end, out);
    if (found) {
      out = Copy(source + firsts[part], source + lasts[part], out);
      text = found + mark_bytes;
    }
  }
  return out - begin;
}

// Takes paragraphs apart that went through the splitter as one text.
//   text: a line for each sentence, a line feed behind each, the last one too. Behind the last sentence of a
//     paragraph is `mark`.
//   spaces: [num_spaces, 4], the bytes of each white space, 0 behind them.
//   most: paragraphs that there may be.
//   out: with room for the text: the lines without marks.
//   ends, counts: [most], where each paragraph ends in `out`, and how many lines it has.
// Returns the number of paragraphs; -1 where there are more, or a line begins with white space. The mark is one:
// none is empty.
int64_t take_apart(const uint8_t* text, int64_t length, const uint8_t* mark, int64_t mark_bytes, const uint8_t* spaces,
                   int64_t num_spaces, int64_t most, uint8_t* out, int64_t* ends, int64_t* counts) {
  bool may_begin_space[256] = {};
  for (int64_t i = 0; i < num_spaces; ++i) may_begin_space[spaces[4 * i]] = true;
  const uint8_t *end = text + length, *begin = out;
  int64_t found = 0, lines = 0;
  while (text < end) {
    const auto* stop = static_cast<const uint8_t*>(std::memchr(text, '\n', end - text));
    if (!stop) return -1;
    if (may_begin_space[*text]) {
      for (int64_t i = 0; i < num_spaces; ++i) {
        const uint8_t* space = spaces + 4 * i;
        const int64_t bytes = strnlen(reinterpret_cast<const char*>(space), 4);
        if (bytes <= stop + 1 - text && !std::memcmp(text, space, bytes)) return -1;
      }
    }
    const bool closes = stop - text >= mark_bytes && !std::memcmp(stop - mark_bytes, mark, mark_bytes);
    out = Copy(text, closes ? stop - mark_bytes : stop, out);
    *out++ = '\n';
    ++lines;
    if (closes) {
      if (found == most) return -1;
      ends[found] = out - begin;
      counts[found++] = lines;
      lines = 0;
    }
    text = stop + 1;
  }
  return found;
}

}  // extern "C"
