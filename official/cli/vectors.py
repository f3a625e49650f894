"""`bert embed` and `search`: embeddings of a table's texts, and the nearest texts to a query."""

from __future__ import annotations

from absl import logging

from official.cli import ask, command_line
from official.cli.command_line import LengthFlag
from official.io.errors import ConfigError


class PromptFlags(command_line.Flags):
    """Flags of prompts, which are prepended to texts.

    Attributes:
      prompt: Text to prepend to each text, such as "query: ". Unset: that of --prompt_name.
      prompt_name: Name of a prompt in the model's folder, such as query or passage. Unset: the folder's
        default prompt.
    """

    prompt: str | None = None
    prompt_name: str | None = None


# -----------------------------------------------------------------------------------------------------------
# bert embed


class Embed(ask.ModelFlags, LengthFlag, PromptFlags):
    """Writes an embedding for each text of a table, equal to those of sentence-transformers.

      bert embed --checkpoint=M --input_file=texts.csv --output_file=vectors.npy
      bert embed --checkpoint=M --input_file=new.parquet --output_file=out.parquet --vector_dtype=int8

    vectors.npy.json, next to the vectors, has the model's digest, pooling, rows, and the number of truncated
    texts. Rows without a text get the vector of the empty text, and are counted. A killed command resumes
    where it was.

    Attributes:
      input_file: CSV, TSV, JSON lines, Parquet, a folder written by datasets' save_to_disk; globs, compressed
        files.
      output_file: .npy: a NumPy array [rows, size]. .parquet: the input table with a column embedding.
      text_columns: Column with the text.
      vector_dtype: Type of the vectors: float32, float16, int8 (256 levels between the minimum and maximum of
        each component) or binary (8 signs per byte); the latter two equal those of sentence-transformers.
      overwrite: Replace an existing --output_file.
    """

    input_file: str
    output_file: str
    text_columns: str = "text"
    vector_dtype: str = "float32"
    overwrite: bool = False


def run_embed() -> None:
    flags = Embed.parse()
    from official.data.tables import predictions
    from official.data.tables.files import open_table
    from official.inference import vector_files

    ending = predictions.check_format(flags.output_file, formats=vector_files.FORMATS)
    column = _one_column(flags.text_columns)
    table = open_table(flags.input_file, "input_file", [column], all_columns=ending != ".npy")
    model = ask.load(flags)
    if flags.prompt is flags.prompt_name is None:
        model.embedder.report_prompts()
    said = vector_files.embed_file(
        model,
        table,
        column,
        flags.output_file,
        flags.vector_dtype,
        model.embedder.embedding.prompt(flags.prompt, flags.prompt_name),
        ask.how(flags),
        flags.overwrite,
    )
    print(f"{flags.output_file}: {said['rows']:,} vectors of {said['dtype']} x {said['size']}")


def _one_column(given: str) -> str:
    if "," in given:
        raise ConfigError(f"--text_columns={given}: an embedding has one text. Give one column.")
    return given


# -----------------------------------------------------------------------------------------------------------
# bert search


class Search(ask.InferenceFlags, LengthFlag, PromptFlags):
    """Finds the nearest texts to a query among the vectors that `bert embed` wrote.

      bert search --vectors=vectors.npy --texts=texts.csv --query="a film about the sea"
      bert search --vectors=vectors.npy --query_file=questions.txt --output_file=found.csv --top_k=3

    Each output line has a row number of the table (from 0), its similarity to the query, and its text. The
    search is exact: it compares all vectors, in blocks. For many millions of vectors, or many queries per
    second, load vectors.npy into faiss, hnswlib or usearch.

    Attributes:
      vectors: Vectors written by bert embed: .npy or .parquet, with the .json file next to it.
      checkpoint: Model for the query. Unset: the path of the model that made the vectors.
      vocab_file: Vocabulary. Unset: the one in the folder of the checkpoint or run.
      do_lower_case: Lower-case the text and strip accents. Unset: as the model's files say.
      texts: Table that the vectors were made from, to print the texts. Unset: its path at that time.
      text_columns: Column with the text. Unset: the one that the vectors were made from.
      query: Text to search for.
      query_file: File with one query per line.
      output_file: Table of all results: CSV, TSV, JSON lines or Parquet. Unset: print them.
      top_k: Number of results per query.
      overwrite: Replace an existing --output_file.
    """

    RANGES = {"top_k": command_line.COUNT}
    vectors: str
    checkpoint: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    texts: str | None = None
    text_columns: str | None = None
    query: str | None = None
    query_file: str | None = None
    output_file: str | None = None
    top_k: int = 10
    overwrite: bool = False


def run_search() -> None:
    flags = Search.parse()
    from official.data.tables import predictions
    from official.data.tables.files import open_table
    from official.inference import vector_files
    from official.io import writing

    queries = _queries_of(flags.query, flags.query_file)
    if flags.output_file:
        ending = predictions.check_format(flags.output_file, formats=predictions.TABLES)
        writing.check_output_file(flags.output_file, "output_file", flags.overwrite)
    vectors = vector_files.VectorFile(flags.vectors)
    column = _one_column(flags.text_columns or vectors.said["text_column"])
    table = open_table(flags.texts or vectors.said["input_file"], "texts", [column])
    if flags.output_file:
        writing.check_not_read(flags.output_file, "output_file", table.paths, "texts")
    flags.checkpoint = flags.checkpoint or vectors.said["checkpoint"]
    model = ask.load(flags)
    vectors.check_model(model)
    settings = model.embedder.embedding
    name = flags.prompt_name or ("query" if "query" in settings.prompts else None)
    prompt = settings.prompt(flags.prompt, name)
    if (theirs := vectors.said.get("prompt")) and not prompt and flags.prompt is None:
        warning = "%s was made with the prompt %r, but queries have none. Give --prompt, or --prompt=''."
        logging.warning(warning, vectors.path, theirs)
    if (theirs := vectors.said.get("model_dtype", flags.dtype)) != flags.dtype:
        warning = "%s was computed with --dtype=%s, but queries with %s. Give the same --dtype for both."
        logging.warning(warning, vectors.path, theirs, flags.dtype)
    queries_QD = model.embed(queries, prompt=prompt)
    found = vectors.search(queries_QD, flags.top_k)
    wanted = {one.row for neighbours in found for one in neighbours}
    texts, digest = vector_files.read_rows(table, column, wanted, vectors.rows)
    if column == vectors.said["text_column"] and digest != vectors.said.get("texts_digest", digest):
        problem = f"--texts={table.given}: its texts are not the ones that {vectors.path} was made from"
        if flags.texts is None:
            raise ConfigError(f"{problem}. Embed them again, or give the original file.")
        logging.warning("%s.", problem)
    if flags.output_file:
        rows = [
            (query, rank, one.row, one.score, texts[one.row])
            for query, neighbours in zip(queries, found)
            for rank, one in enumerate(neighbours, 1)
        ]
        names = ("query", "rank", "row", "score", "text")
        columns = dict(zip(names, map(list, zip(*rows))))
        writing.replace_file(flags.output_file, predictions.encode(ending, columns, with_header=True))
        print(f"{flags.output_file}: {len(rows):,} neighbours of {len(queries):,} queries")
        return
    for query, neighbours in zip(queries, found):
        if flags.query_file:
            print(query)
        for one in neighbours:
            print(f"{one.row}\t{one.score:.4f}\t{' '.join(texts[one.row].split())}")


def _queries_of(query: str | None, query_file: str | None) -> list[str]:
    """Returns the queries in the flags. Raises ConfigError if there are none."""
    from official.data.tables.predictions import TABLES
    from official.io import files

    if (query is None) == (query_file is None):
        raise ConfigError("give either --query=TEXT or --query_file=F, with one query per line.")
    if query_file is None:
        found = [str(query)]
    elif query_file.lower().endswith(TABLES):
        raise ConfigError(
            f"--query_file={query_file} is a table, expected a text file with one query per line."
        )
    else:
        # Not `splitlines`: a query may contain U+2028.
        found = files.read_text(query_file, f"--query_file={query_file}").split("\n")
    found = [line for line in found if line.strip()]
    if not found:
        given = f"--query={query}" if query_file is None else f"--query_file={query_file}"
        raise ConfigError(f"{given} has no text.")
    return found
