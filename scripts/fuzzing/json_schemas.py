"""What JSON files have to be: keys whose types are checked, keys that must be there, wrong values."""

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)

MODEL = {
    "checked": [(name,) for name in (*_SIZES, "hidden_dropout_prob", "hidden_act")],
    "required": [("vocab_size",)],
    "ranges": {
        **{(name,): (0, -1, 10**30) for name in _SIZES},
        ("hidden_dropout_prob",): (-0.1, 1.5, 1e30),
        ("hidden_act",): ("tanh", ""),
    },
}
CONFIG = {
    "checked": [
        ("model",),
        ("train_batch_size",),
        ("learning_rate",),
        ("vocab_file",),
        ("seed",),
        ("model", "hidden_size"),
    ],
    "ranges": {
        ("train_batch_size",): (0, -4, 2.5),
        ("learning_rate",): (-1, 10**25),
        ("task",): ("translate",),
        ("dtype",): ("fp8",),
        ("model", "num_hidden_layers"): (0, -1),
        ("max_seq_length",): (0, 10**9),
    },
}
RESULT = {
    "checked": [("status",), ("config",), ("step",), ("reason",), ("sequences_per_sec",)],
    "required": [("status",)],
    "ranges": {("status",): ("done", "")},
}
QUESTION = ("data", "*", "paragraphs", "*", "qas", "*")
SQUAD = {
    "checked": [
        ("data",),
        ("data", "*", "paragraphs"),
        QUESTION[:5],
        (*QUESTION, "id"),
        (*QUESTION, "question"),
        (*QUESTION, "answers"),
        ("data", "*", "paragraphs", "*", "context"),
        (*QUESTION, "answers", "*", "answer_start"),
        (*QUESTION, "answers", "*", "text"),
    ],
    "required": [
        ("data",),
        ("data", "*", "paragraphs"),
        ("data", "*", "paragraphs", "*", "context"),
        QUESTION[:5],
        (*QUESTION, "id"),
        (*QUESTION, "question"),
        (*QUESTION, "answers", "*", "answer_start"),
        (*QUESTION, "answers", "*", "text"),
    ],
    "ranges": {(*QUESTION, "id"): ("train-1",), (*QUESTION, "is_impossible"): (True,)},
    "found": {
        (*QUESTION, "answers", "*", "answer_start"): (-1, -500, 10**6),
        (*QUESTION, "question"): ("", "  "),
    },
}
GOLD = {
    "checked": [
        ("data",),
        ("data", "*", "paragraphs"),
        (*QUESTION, "id"),
        (*QUESTION, "answers"),
        (*QUESTION, "answers", "*", "text"),
    ],
    "required": [
        ("data",),
        ("data", "*", "paragraphs"),
        QUESTION[:5],
        (*QUESTION, "id"),
        (*QUESTION, "answers"),
    ],
    "ranges": {(*QUESTION, "id"): ("dev-1",)},
}
TO_ANSWER = {
    "checked": [*GOLD["checked"][:3], (*QUESTION, "question")],
    "required": [*GOLD["required"][:4]],
    "ranges": GOLD["ranges"],
}
CONFIG_SAVED = {
    "checked": CONFIG["checked"][:5],
    "ranges": {place: values for place, values in CONFIG["ranges"].items() if place != ("max_seq_length",)},
}
