"""The published rules for pairs, texts and masks, sentence by sentence, token by token: the oracle of ours.

Source: google-research/bert, `create_pretraining_data.py`, as described by its paper and README.
"""

import random


def make_pairs(
    documents: list[list[list]],
    max_seq_length: int,
    dupe_factor: int,
    short_seq_prob: float,
    rng: random.Random,
):
    """Returns [(segment A, segment B, is_random)]; a document is a list of sentences, a sentence a list of
    tokens."""
    return [
        pair
        for _ in range(dupe_factor)
        for number in range(len(documents))
        for pair in _pairs_of(documents, number, max_seq_length - 3, short_seq_prob, rng)
    ]


def _pairs_of(documents, number, most, short_seq_prob, rng):
    target = rng.randint(2, most) if rng.random() < short_seq_prob else most
    document, pairs, chunk, position = documents[number], [], [], 0
    while position < len(document):
        chunk.append(document[position])
        if position == len(document) - 1 or sum(map(len, chunk)) >= target:
            split = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first, second = sum(chunk[:split], []), sum(chunk[split:], [])
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                second = _random_segment(documents, number, target - len(first), rng)
                position -= len(chunk) - split
            _truncate(first, second, most, rng)
            pairs.append((first, second, is_random))
            chunk = []
        position += 1
    return pairs


def _random_segment(documents, number, target, rng):
    other = rng.choice([index for index in range(len(documents)) if index != number])
    segment = []
    for sentence in documents[other][rng.randrange(len(documents[other])) :]:
        segment = segment + sentence
        if len(segment) >= target:
            break
    return segment


def _truncate(first, second, most, rng):
    while len(first) + len(second) > most:
        longer = first if len(first) > len(second) else second
        del longer[0 if rng.random() < 0.5 else -1]


def make_texts(documents: list[list], most: int, separator) -> list[list]:
    """Returns the texts of documents that follow each other: all of their tokens, with a separator between
    two documents, cut after `most` of them; one at the end of a text is left out, the row has its own there.

    Source: FULL-SENTENCES of RoBERTa's paper, section 4.2, but sentences are cut.
    """
    texts, text = [], []
    for number, document in enumerate(documents):
        tokens = [token for sentence in document for token in sentence]
        if number and text:
            if len(text) + 1 < most:
                text.append(separator)
            else:
                texts.append(text)
                text = []
        for token in tokens:
            text.append(token)
            if len(text) == most:
                texts.append(text)
                text = []
    return [*texts, text] if text else texts


def mask(
    tokens: list[int],
    special: set[int],
    mask_id: int,
    vocab_size: int,
    masked_lm_prob: float,
    most: int,
    rng: random.Random,
):
    """Returns (tokens with masks, positions, labels)."""
    candidates = [position for position, token in enumerate(tokens) if token not in special]
    rng.shuffle(candidates)
    chosen = sorted(candidates[: min(most, max(1, round(len(tokens) * masked_lm_prob)))])
    masked = list(tokens)
    for position in chosen:
        if rng.random() < 0.8:
            masked[position] = mask_id
        elif rng.random() >= 0.5:
            masked[position] = rng.randrange(vocab_size)
    return masked, chosen, [tokens[position] for position in chosen]
