"""Tokenizers of the library: byte-level BPE and Unigram against the rules in Python, folders, refusals."""

import json
import math
import pathlib
import random
import struct
import unicodedata

import numpy as np
import pytest
import tokenizers

from official.data.rows.text_rows import encode
from official.data.squad import features, squad_files
from official.data.word_pieces.tokenizer import LibraryTokenizer, tokenizer_of
from official.data.word_pieces.vocabulary import load_for_text
from official.io import vocabulary_files
from official.io.errors import ConfigError
from tests.refusals import assert_refused

ALPHABETS = ("abcdeéñ", "абвгд", "日本語中文", "ابتث", "कखगिी")  # five scripts


def lines(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    found = ["", " ", "\t\n", "don't they've I'll", "3.14,15 ½", "👩‍👩 ok", "a\u00a0b"]
    while len(found) < count:
        words = (
            "".join(rng.choices(rng.choice(ALPHABETS), k=rng.randint(1, 6))) for _ in range(rng.randint(1, 9))
        )
        text = rng.choice(["", " "]) + rng.choice([" ", "  ", ", ", "\n"]).join(words)
        found.append(text + rng.choice(["", "!", " "]))
    return found


LINES = lines(1, 300)
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / {"config": "config.json", "settings": "tokenizer_config.json"}.get(name, name)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(folder)


# -----------------------------------------------------------------------------------------------------------
# Byte-level BPE


@pytest.fixture(scope="module")
def roberta(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("roberta")
    bpe = tokenizers.ByteLevelBPETokenizer()
    special = [*SPECIAL, "<mask>"]
    bpe.train_from_iterator(lines(0, 2000), vocab_size=700, special_tokens=special, show_progress=False)
    bpe.save_model(str(folder))
    return write(folder, settings={"tokenizer_class": "RobertaTokenizer", "model_max_length": 512})


def letters_of_bytes() -> dict[int, str]:
    """GPT-2's characters for bytes: those that can be seen as they are, others from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + n) for n, byte in enumerate(others)}


ENDINGS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def chunks(text: str) -> list[str]:
    """GPT-2's pattern: endings, then runs of letters, numbers or others behind a space."""

    def kind(character: str) -> str:
        category = unicodedata.category(character)[0]
        return "space" if character.isspace() else category if category in "LN" else "other"

    found, place = [], 0
    while place < len(text):
        ending = next((each for each in ENDINGS if text.startswith(each, place)), None)
        first = place + (text[place] == " " and place + 1 < len(text) and kind(text[place + 1]) != "space")
        end = first
        while end < len(text) and kind(text[end]) == kind(text[first]):
            end += 1
        if ending:
            end = place + len(ending)
        elif kind(text[first]) == "space" and end < len(text) and end - place > 1:
            end -= 1  # the last one belongs to what follows
        found.append(text[place:end])
        place = end
    return found


def bpe_ids(text: str, vocab: dict[str, int], merges: list[tuple[str, str]]) -> list[int]:
    ranks, letters, found = {pair: n for n, pair in enumerate(merges)}, letters_of_bytes(), []
    for chunk in chunks(text):
        parts = [letters[byte] for byte in chunk.encode()]
        while len(parts) > 1:
            pairs = [(ranks.get(pair, math.inf), n) for n, pair in enumerate(zip(parts, parts[1:]))]
            rank, place = min(pairs)
            if rank == math.inf:
                break
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        found += map(vocab.__getitem__, parts)
    return found


def test_byte_level_bpe_follows_the_rules(roberta):
    vocabulary = load_for_text(roberta)
    tokenizer = tokenizer_of(vocabulary)
    vocab = json.loads(pathlib.Path(roberta, "vocab.json").read_text())
    pairs = pathlib.Path(roberta, "merges.txt").read_text().splitlines()[1:]
    merges = [tuple(pair.split()) for pair in pairs]
    ids, counts, begins, ends = tokenizer.spans(LINES)
    parts = np.split(ids, np.cumsum(counts)[:-1])
    wrong = [text for text, found in zip(LINES, parts) if found.tolist() != bpe_ids(text, vocab, merges)]
    assert not wrong
    texts = np.repeat(np.arange(len(LINES)), counts)
    letters = {letter: byte for byte, letter in letters_of_bytes().items()}
    for text, number, begin, end in zip(texts, ids, begins, ends):
        piece = bytes(letters[letter] for letter in vocabulary.words[number])
        shown = piece.decode(errors="ignore").strip()
        if piece.decode(errors="replace").isprintable() and shown:
            assert LINES[text][begin:end].strip() == shown
    assert (vocabulary.special_ids, vocabulary.separators, vocabulary.max_length) == ((1, 3, 0, 2, 4), 2, 512)
    special, _ = tokenizer.tokenize(["a <mask> b</s>"])
    assert {4, 2} <= {*special.tolist()}


def test_pairs_and_windows_have_two_separators(roberta):
    vocabulary = load_for_text(roberta)
    tokenizer = tokenizer_of(vocabulary)
    rows, whole = encode([["abc", "ab"], ["дгв", "वक"]], tokenizer, vocabulary, 9)
    for number, (a, b) in enumerate((("abc", "дгв"), ("ab", "वक"))):
        (one, _), (two, _) = tokenizer.tokenize([a]), tokenizer.tokenize([b])
        assert whole[number] == len(one) + len(two) + 4
        begin = rows.starts[number]
        row = rows.ids[begin : begin + rows.lengths[number]].tolist()
        assert len(row) <= 9 and row[0] == 0 and row[-1] == 2
        first = rows.first_lengths[number]
        assert row[first - 2 : first] == [2, 2] and row[1 : first - 2] == one[: first - 3].tolist()
    context = " ".join(lines(3, 60)[7:])
    word = context.split()[40].strip("!,")
    start = context.index(word)
    question = squad_files.Question("q", "abc?", 0, (word,), (start,), False)
    data = squad_files.SquadData("", "", True, False, [context], [question], {}, [])
    rules = features.WindowRules(max_seq_length=64, doc_stride=16, max_query_length=16)
    made = features.make_features(data, vocabulary, rules)
    query, _ = tokenizer.tokenize(["abc?"])
    assert (made.first_lengths == len(query) + 3).all()
    hits = 0
    for row in range(len(made)):
        first, last = made.start_positions[row], made.end_positions[row]
        if last:
            shift = made.first_pieces[row] - made.first_lengths[row]
            assert word in context[made.piece_begins[shift + first] : made.piece_ends[shift + last]]
            hits += 1
    assert hits and (made.lengths <= 64).all()


def test_words_of_a_sentence_stand_behind_a_space(roberta):
    tokenizer = tokenizer_of(load_for_text(roberta))
    ids, counts = tokenizer.tokenize_words(["abc", "дг"])
    whole, _ = tokenizer.tokenize([" abc дг"])
    assert ids.tolist() == whole.tolist() and counts.sum() == len(whole)


# -----------------------------------------------------------------------------------------------------------
# Unigram


def message(*fields: tuple[int, object]) -> bytes:
    """A protocol buffer of bytes, floats and integers."""
    found = b""
    for number, value in fields:
        if isinstance(value, bytes):
            found += bytes([number << 3 | 2]) + varint(len(value)) + value
        elif isinstance(value, float):
            found += bytes([number << 3 | 5]) + struct.pack("<f", value)
        else:
            found += bytes([number << 3]) + varint(value)
    return found


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


@pytest.fixture(scope="module")
def pieces() -> list[tuple[str, float]]:
    rng = random.Random(5)
    words = {word for line in LINES for word in line.split()}
    found = {"\u2581": -3.0} | {letter: -6.0 for alphabet in ALPHABETS for letter in alphabet[:-1]}
    for word in sorted(words):
        size = rng.randint(1, len(word))
        found[("\u2581" if rng.random() < 0.5 else "") + word[:size]] = -rng.uniform(1, 9)
    return list(found.items())


def sentencepiece(pieces, kind: int = 1, user_defined: tuple[bytes, ...] = ()) -> bytes:
    control = [(b"<unk>", 2), (b"<s>", 3), (b"</s>", 3), *((word, 4) for word in user_defined)]
    parts = [message((1, word), (2, 0.0), (3, number)) for word, number in control]
    parts += [message((1, word.encode()), (2, score)) for word, score in pieces]
    return b"".join(message((1, part)) for part in parts) + message((2, message((3, kind))))


def viterbi(word: str, scores: dict[str, float]) -> list[str]:
    """The pieces of the highest sum; what nothing covers is <unk>, ten below the lowest score."""
    unknown, best = min(scores.values()) - 10, [(0.0, [])]
    for end in range(1, len(word) + 1):
        options = []
        for begin in range(end):
            piece = word[begin:end]
            if piece in scores:
                options.append((best[begin][0] + scores[piece], [*best[begin][1], piece]))
        if word[end - 1] not in scores:
            options.append((best[end - 1][0] + unknown, [*best[end - 1][1], "<unk>"]))
        best.append(max(options, key=lambda option: option[0]))
    return best[-1][1]


def test_sentencepiece_models_follow_the_rules(tmp_path, pieces):
    content = sentencepiece(pieces)
    settings = {"tokenizer_class": "XLMRobertaTokenizer"}
    folder = write(tmp_path, **{"sentencepiece.bpe.model": content}, settings=settings)
    vocabulary = load_for_text(folder)
    assert vocabulary.words[:4] == tuple(SPECIAL) and vocabulary.words[-1] == "<mask>"
    scores = {word: struct.unpack("<f", struct.pack("<f", score))[0] for word, score in pieces}
    ids, counts = tokenizer_of(vocabulary).tokenize(LINES)
    for text, found in zip(LINES, np.split(ids, np.cumsum(counts)[:-1])):
        wanted: list[str] = []
        for word in text.split():
            for piece in viterbi("\u2581" + word, scores):
                if [piece] != wanted[-1:] or piece != "<unk>" or word.startswith("\u2581"):
                    wanted.append(piece)
        assert [vocabulary.words[number] for number in found] == wanted, text


def test_user_defined_pieces_of_a_sentencepiece_model_are_found_before_words(tmp_path, pieces):
    """What stands behind one is a word of its own, and begins as such; unless a folder names such tokens."""
    content = sentencepiece(pieces, user_defined=(b"<url>",))
    for name in ("XLMRobertaTokenizer", "CamembertTokenizer"):
        folder = write(tmp_path, **{"spiece.model": content}, settings={"tokenizer_class": name})
        tokenizer = tokenizer_of(load_for_text(folder))
        (one, url, other), _ = zip(*(tokenizer.tokenize([text]) for text in ("ab", "<url>", "cd")))
        assert len(url) == 1 and tokenizer.word_of(url[0]) == "<url>"
        assert tokenizer.tokenize(["ab<url>cd"])[0].tolist() == [*one, *url, *other]
        settings = {"tokenizer_class": name, "additional_special_tokens": ["<other>"]}
        other_tokenizer = tokenizer_of(load_for_text(write(tmp_path, settings=settings)))
        assert other_tokenizer.tokenize(["ab<url>cd"])[0].tolist() != [*one, *url, *other]


def test_scores_are_exact_where_a_class_builds_the_model(tmp_path):
    """As in transformers: the library itself reads this score from JSON with another last bit."""
    first = [[word, 0.0] for word in ("<s>", "<pad>", "</s>", "<unk>")]
    model = {"type": "Unigram", "unk_id": 3, "vocab": [*first, ["a", -3.8023476662052716], ["<mask>", 0.0]]}
    whole = {"model": model, "added_tokens": []}

    def scores(tokenizer):
        return json.loads(tokenizer.to_str())["model"]["vocab"]

    template = {
        "single": "<s> $A </s>",
        "pair": "<s> $A </s> $B </s>",
        "special_tokens": [("<s>", 0), ("</s>", 2)],
    }
    alone = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", **whole}))
    alone.post_processor = tokenizers.processors.TemplateProcessing(**template)
    whole["post_processor"] = json.loads(alone.to_str())["post_processor"]
    for name, wanted in (("XLMRobertaTokenizer", model["vocab"]), ("PreTrainedTokenizerFast", scores(alone))):
        settings = {"tokenizer_class": name, "unk_token": "<unk>", "mask_token": "<mask>"}
        file = vocabulary_files.read(write(tmp_path / name, **{"tokenizer.json": whole}, settings=settings))
        assert json.loads(file.content)["model"]["vocab"] == model["vocab"], name  # what is kept
        assert scores(file.tokenizer.load()) == wanted, name


# -----------------------------------------------------------------------------------------------------------
# Folders


def test_what_is_kept_reads_as_the_same(tmp_path, roberta, pieces):
    model, config = {"spiece.model": sentencepiece(pieces)}, {"model_type": "xlm-roberta"}
    spm = write(tmp_path / "spm", **model, config=config)
    vocab = {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n" + "é\ne".encode()}
    decoder = {"9": {"content": "COVID-19", "normalized": True}}
    settings = {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": decoder}
    added = write(tmp_path / "added", **vocab, settings=settings)
    settings = {"tokenizer_class": "BertTokenizer", "cls_token": "[BOS]"}  # which the vocabulary lacks
    begun = write(tmp_path / "begun", **vocab, settings=settings)
    for folder in (roberta, spm, added, begun):
        file = vocabulary_files.read(folder)
        assert file.tokenizer is not None
        kept = tmp_path / "kept" / file.tokenizer.special.cls.strip("<>[]/") / str(len(file.words))
        kept = write(kept, **vocabulary_files.companions(folder, None, 512))
        again = vocabulary_files.read(kept)
        assert (again.content, again.tokenizer.special) == (file.content, file.tokenizer.special)
        one, other = (tokenizer_of(load_for_text(each)).tokenize(LINES) for each in (folder, kept))
        assert all(map(np.array_equal, one, other))
    tokenizer = tokenizer_of(load_for_text(added))
    assert isinstance(tokenizer, LibraryTokenizer)
    assert tokenizer.tokenize(["ab COVID-19 É"])[0].tolist() == [5, 6, 9, 8]
    plain = write(tmp_path / "plain", **vocab)
    assert load_for_text(plain).tokenizer is None  # BERT's have their fast path


def test_an_added_token_is_matched_as_the_first_file_that_has_it_says(tmp_path):
    """tokenizer.json; then added_tokens.json, whose special tokens are those of tokenizer_config.json."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "e"]
    model = {"type": "WordPiece", "vocab": {word: number for number, word in enumerate(words)}}
    token = {"content": "[E]", "special": True, "normalized": False}
    whole = {"model": model, "added_tokens": [{"id": 8, **token, "lstrip": True}]}
    settings = {"tokenizer_class": "BertTokenizer"}
    for number, (files, more, small) in enumerate(
        (
            ({"tokenizer.json": whole}, {}, [5, 7, 6]),
            ({}, {"additional_special_tokens": ["[E]"]}, [5, 7, 6]),
            ({}, {"additional_special_tokens": ["e]"], "extra_special_tokens": ["[E]"]}, [5, 7, 6]),
            ({}, {}, [8]),  # in lower case as in capitals
        )
    ):
        vocab = "\n".join(words).encode()
        files = {"vocab.txt": vocab, "added_tokens.json": {"[E]": 8}, **files}
        folder = write(tmp_path / str(number), **files, settings={**settings, **more})
        tokenizer = tokenizer_of(load_for_text(folder))
        assert tokenizer.tokenize(["[E]"])[0].tolist() == [8], number
        assert tokenizer.tokenize(["[e]"])[0].tolist() == small, number


def test_what_cannot_be_read_is_named(tmp_path_factory, roberta, pieces):
    def load(files, settings=None):
        folder = tmp_path_factory.mktemp("folder")
        return load_for_text(write(folder, **files, **({"settings": settings} if settings else {})))

    def changed(**parts):
        return {"tokenizer.json": {**whole, **parts}}

    def spm(content):
        return {"spiece.model": content}

    vocab, merges = (pathlib.Path(roberta, name).read_bytes() for name in ("vocab.json", "merges.txt"))
    model, robertas = {"vocab.json": vocab, "merges.txt": merges}, {"tokenizer_class": "RobertaTokenizer"}
    whole = json.loads(vocabulary_files.read(roberta).content)
    bpe, xlm, good = whole["model"], {"tokenizer_class": "XLMRobertaTokenizer"}, sentencepiece(pieces)
    map_of_no_end = b"\x08\0\0\0" + b"\xff" * 8  # at which the library panics
    no_merges = {"tokenizer.json": {"model": {"type": "BPE", "vocab": bpe["vocab"]}}}
    cases = [
        ({"vocab.json": vocab}, robertas, "merges.txt is missing"),
        (model, "the class of its tokenizer is unknown"),
        (model, {"tokenizer_class": "DebertaV2Tokenizer"}, "DebertaV2Tokenizer is not supported"),
        (model, {**robertas, "truncation_side": "left"}, "truncation_side"),
        (model, {**robertas, "fast_tokenizer_files": ["tokenizer.4.0.0.json"]}, "fast_tokenizer_files"),
        (model, {**robertas, "additional_special_tokens": ["\ud800"]}, "of another type .UnicodeEncodeErr"),
        (changed(post_processor=None), "joins two texts"),
        (changed(normalizer={"type": "Lowercase"}), robertas, "normalizer Lowercase is not the one"),
        (changed(post_processor={"type": "Strange"}), "Save the tokenizer again"),
        (changed(model={**bpe, "dropout": 0.5}), "dropout=0.5 is not supported"),
        (
            changed(model={**bpe, "vocab": {**bpe["vocab"], "x": 2**31}}),
            "the id 2,147,483,648 is out of range",
        ),
        (no_merges, robertas, "of another type .KeyError: 'merges'"),
        (spm(good), {**xlm, "bos_token": "a"}, "bos_token='a' is not"),
        (spm(b"\x0a\x05ab"), xlm, "not a SentencePiece model"),
        (spm(sentencepiece(pieces, 2)), xlm, "model_type=2"),
        (spm(b"\xff" * 10**6), xlm, "not a SentencePiece model"),
        (spm(good + message((3, message((2, 5))))), xlm, "not a SentencePiece"),
        (spm(good + message((3, message((2, map_of_no_end))))), xlm, "out of b"),
    ]
    assert_refused(load, cases)
    assert load(model, {**robertas, "mask_token": "<m>"}).special.mask == "<m>"  # added, as transformers does
    with pytest.raises(ConfigError, match="do_lower_case"):
        load_for_text(roberta, do_lower_case=True)
