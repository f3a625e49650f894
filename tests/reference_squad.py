"""The published rules of SQuAD's features and answers, one question, window and token after the other: the
oracle of the fast ones.

Written from the description of run_squad.py. Source: https://github.com/google-research/bert/blob/master/run_squad.py
"""

from tests import reference_wordpiece

SPACES = {" ", "\t", "\r", "\n", chr(0x202F)}


def split_context(context: str) -> tuple[list[str], list[int]]:
    """Returns the words, and for each character the number of its word, or of the word before it; -1 without
    one."""
    words, numbers, in_word = [], [], False
    for character in context:
        if character in SPACES:
            in_word = False
        elif in_word:
            words[-1] += character
        else:
            words.append(character)
            in_word = True
        numbers.append(len(words) - 1)
    return words, numbers


def can_be_trained_on(context: str, answer: str, begin: int) -> bool:
    words, numbers = split_context(context)
    last = begin + len(answer) - 1
    if not answer or begin < 0 or last >= len(numbers):
        return False
    touched = words[numbers[begin] : numbers[last] + 1] if numbers[begin] >= 0 else []
    return bool(touched) and " ".join(answer.split()) in " ".join(touched)


def improve(pieces: list[int], first: int, last: int, answer: list[int]) -> tuple[int, int]:
    for new_first in range(first, last + 1):
        for new_last in range(last, new_first - 1, -1):
            if pieces[new_first : new_last + 1] == answer:
                return new_first, new_last
    return first, last


def windows_of(pieces: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns (first piece, pieces) of each window."""
    windows, start = [], 0
    while start < pieces:
        length = min(pieces - start, room)
        windows.append((start, length))
        if start + length == pieces:
            break
        start += min(length, stride)
    return windows


def shows_best(windows: list[tuple[int, int]], number: int, piece: int) -> bool:
    """Returns whether a window is the first of those that show a piece best."""
    scores = {
        other: min(piece - start, start + length - 1 - piece) + 0.01 * length
        for other, (start, length) in enumerate(windows)
        if start <= piece < start + length
    }
    return number == max(scores, key=lambda other: (scores[other], -other))


def features(
    question: str,
    context: str,
    answer: tuple[str, int] | None,
    vocabulary: dict[str, int],
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    do_lower_case: bool = True,
) -> list[dict]:
    """Returns the windows of a question; `answer` is (text, first character)."""
    query = reference_wordpiece.tokenize(question, vocabulary, do_lower_case)[:max_query_length]
    words, numbers = split_context(context)
    pieces, first_piece_of = [], []
    for word in words:
        first_piece_of.append(len(pieces))
        pieces += reference_wordpiece.tokenize(word, vocabulary, do_lower_case)
    first, last = 0, -1
    if answer:
        text, begin = answer
        last_word = numbers[begin + len(text) - 1]
        first = first_piece_of[numbers[begin]]
        last = first_piece_of[last_word + 1] - 1 if last_word < len(words) - 1 else len(pieces) - 1
        answer_pieces = reference_wordpiece.tokenize(text, vocabulary, do_lower_case)
        first, last = improve(pieces, first, last, answer_pieces)
    windows = windows_of(len(pieces), max_seq_length - len(query) - 3, doc_stride) if question.strip() else []
    result = []
    for number, (start, length) in enumerate(windows):
        end = vocabulary["[SEP]"]
        ids = [vocabulary["[CLS]"], *query, end, *pieces[start : start + length], end]
        offset = len(query) + 2
        padding = [0] * (max_seq_length - len(ids))
        is_inside = start <= first <= last < start + length
        result.append(
            {
                "input_ids": ids + padding,
                "input_mask": [1] * len(ids) + padding,
                "segment_ids": [0] * offset + [1] * (length + 1) + padding,
                "start_positions": first - start + offset if is_inside else 0,
                "end_positions": last - start + offset if is_inside else 0,
                "is_max_context": [
                    offset <= token < offset + length and shows_best(windows, number, start + token - offset)
                    for token in range(max_seq_length)
                ],
                "is_context": [offset <= token < offset + length for token in range(max_seq_length)],
            }
        )
    return result


def n_best(
    windows: list[dict], texts, start_logits, end_logits, n_best_size: int, max_answer_length: int
) -> list[tuple]:
    """Returns (text, start logit, end logit) of the best answers of a question, best first.

    Args:
      windows: as `features` gives them.
      texts: function of (window, first token, last token) that returns the text.
      start_logits, end_logits: of each window, a list of floats.
    """
    candidates = []
    for number, window in enumerate(windows):
        starts = [token for token, may in enumerate(window["is_max_context"]) if may]
        ends = [token for token, may in enumerate(window["is_context"]) if may]
        for start in sorted(starts, key=lambda token: -start_logits[number][token])[:n_best_size]:
            for end in sorted(ends, key=lambda token: -end_logits[number][token])[:n_best_size]:
                if start <= end < start + max_answer_length:
                    logits = start_logits[number][start], end_logits[number][end]
                    candidates.append((texts(number, start, end), *logits))
    best, seen = [], set()
    for candidate in sorted(candidates, key=lambda candidate: -(candidate[1] + candidate[2])):
        if candidate[0] not in seen and len(best) < n_best_size:
            seen.add(candidate[0])
            best.append(candidate)
    return best


def with_null(best: list[tuple], null: tuple[float, float], n_best_size: int) -> list[tuple]:
    """Returns the n-best list with "no answer" among the others or, where that is too bad for it, behind
    them."""
    ranked = sorted([*best, ("", *null)], key=lambda entry: -(entry[1] + entry[2]))[:n_best_size]
    return ranked if any(text == "" for text, _, _ in ranked) else [*ranked, ("", *null)]
