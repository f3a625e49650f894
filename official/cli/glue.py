"""`bert data glue`: downloads GLUE's data, checks the sha256 of every file, and resumes transfers."""

import http.client
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from typing import Any, NamedTuple

import tqdm

from official.cli import command_line, outputs
from official.data.glue.tasks import MRPC_TRAIN_AND_DEV, TASKS, find_task
from official.io.errors import ConfigError
from official.io.files import sha256_of
from official.io.writing import naming_output, publish, replacing

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECS = 60
_RESUMES = "the download resumes where it stopped"
_SPLITS = [split for task in TASKS.values() for split in task.splits.values()]


class Source(NamedTuple):
    """A file on the server."""

    path: str  # below the base URL
    size: int  # bytes
    sha256: str


# Archive or file -> path, bytes, sha256: as TensorFlow Datasets and Hugging Face Datasets record them.
_PUBLISHED = """
CoLA glue/data/CoLA.zip 376971 f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff
MNLI glue/data/MNLI.zip 312783507 e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633
SST-2 glue/data/SST-2.zip 7439277 d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa
STS-B glue/data/STS-B.zip 802872 e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85
QQP glue/data/QQP-clean.zip 41696084 40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0
QNLI glue/data/QNLIv2.zip 10627589 e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5
RTE glue/data/RTE.zip 697150 6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee
WNLI glue/data/WNLI.zip 28999 ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46
AX glue/data/AX.tsv 222257 0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd
MRPC_TRAIN senteval/senteval_data/msr_paraphrase_train.txt 1047044
    60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89
MRPC_TEST senteval/senteval_data/msr_paraphrase_test.txt 441275
    a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784
MRPC_DEV_IDS glue/data/mrpc_dev_ids.tsv 6222 971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7
"""
_WORDS = iter(_PUBLISHED.split())
ARCHIVES = {name: Source(path, int(size), digest) for name, path, size, digest in zip(*[_WORDS] * 4)}
AX, MRPC_TRAIN, MRPC_TEST, MRPC_DEV_IDS = map(ARCHIVES.pop, ("AX", "MRPC_TRAIN", "MRPC_TEST", "MRPC_DEV_IDS"))


class Glue(command_line.Flags):
    """Downloads GLUE's data. Checks the sha256 of every file, resumes interrupted transfers, and fetches
    nothing twice.

      bert data glue --data_dir=data/glue --tasks=all
      bert data glue --data_dir=data/glue --tasks=cola,mrpc

    Attributes:
      data_dir: Folder for the data, with a subfolder for each task.
      tasks: all, or a comma-separated list of cola, mnli, mnli-mm, ax, mrpc, sst2, stsb, qqp, qnli, rte,
        wnli.
      base_url: Mirror with the same paths: https://, http:// or file://.
    """

    data_dir: str
    tasks: str = "all"
    base_url: str = "https://dl.fbaipublicfiles.com"


def folders_of(tasks: str) -> list[str]:
    """Returns the folders that hold the tasks' data: mnli and mnli-mm share one, ax needs that one, too."""
    names = list(TASKS) if tasks == "all" else [name.strip() for name in tasks.split(",")]
    splits = [split for name in names for split in find_task(name, "tasks").splits.values()]
    return list(dict.fromkeys(split.files[0].split("/")[0] for split in splits))


def files_of(folder: str) -> dict[str, int]:
    """Returns {path below --data_dir: published number of rows} of a folder's files."""
    return {split.files[0]: split.rows for split in _SPLITS if split.files[0].startswith(folder + "/")}


def download(base_url: str, source: Source, path: str) -> None:
    """Downloads a file to `path` if it is missing, and resumes an interrupted transfer.

    Raises:
      ConfigError: if the server cannot be reached, ends the transfer early, or sends another file.
    """
    if os.path.exists(path) and sha256_of(path) == source.sha256:
        return
    url, part = f"{base_url.rstrip('/')}/{source.path}", f"{path}.part"
    try:
        if not os.path.exists(part) or os.path.getsize(part) != source.size:
            _transfer(url, source, part)
    except urllib.error.HTTPError as error:
        problem = f"{url}: the server answers {error.code} {error.reason}"
        raise ConfigError(f"{problem}. Try again later, or name a mirror with --base_url.") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        problem = f"{url} cannot be reached: {getattr(error, 'reason', None) or error}"
        raise ConfigError(f"{problem}. Check the network and run this again; {_RESUMES}.") from None
    size = os.path.getsize(part)
    if size < source.size:
        problem = f"{url}: the transfer ended after {size:,} of {source.size:,} bytes"
        raise ConfigError(f"{problem}. Run this again; {_RESUMES}.")
    received = sha256_of(part)
    if received != source.sha256:
        os.remove(part)
        problem = f"{url} is not the published file: {size:,} bytes with sha256 {received}"
        raise ConfigError(f"{problem}, expected {source.size:,} with {source.sha256}.")
    publish(part, path)


def _transfer(url: str, source: Source, part: str) -> None:
    """Appends the missing bytes to `part`; starts again if the server does not support byte ranges."""
    done = os.path.getsize(part) if os.path.exists(part) else 0
    done = done if done <= source.size else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECS) as response:
        done = done if response.status == http.client.PARTIAL_CONTENT else 0
        look: dict[str, Any] = {"desc": os.path.basename(source.path), "disable": None, "leave": False}
        shown = tqdm.tqdm.wrapattr(response, "read", source.size, initial=done, **look)
        with open(part, "ab" if done else "wb") as file, shown as stream:
            shutil.copyfileobj(stream, file, _CHUNK_BYTES)


def fetch_archive(base_url: str, data_dir: str, folder: str) -> None:
    """Downloads a zip file, extracts the folder's missing files, and removes the zip file."""
    archive_path = os.path.join(data_dir, os.path.basename(ARCHIVES[folder].path))
    download(base_url, ARCHIVES[folder], archive_path)
    with zipfile.ZipFile(archive_path) as archive:
        for name in files_of(folder):
            path = os.path.join(data_dir, name)
            if not os.path.exists(path):
                with replacing(path) as part, archive.open(name) as source, open(part, "wb") as target:
                    shutil.copyfileobj(source, target, _CHUNK_BYTES)
    os.remove(archive_path)


def fetch_mrpc(base_url: str, data_dir: str) -> None:
    """Downloads the corpus as published and the ids of GLUE's dev set, and makes GLUE's three files of
    them."""
    names, texts = (MRPC_TRAIN_AND_DEV, "msr_paraphrase_test.txt", "dev_ids.tsv"), []
    for source, name in zip((MRPC_TRAIN, MRPC_TEST, MRPC_DEV_IDS), names):
        path = os.path.join(data_dir, "MRPC", name)
        download(base_url, source, path)
        with open(path, encoding="utf-8-sig", newline="") as file:
            texts.append(file.read())
    for name, text in format_mrpc(*texts).items():
        path = os.path.join(data_dir, "MRPC", name)
        if not os.path.exists(path):
            outputs.write_file(path, text)


def format_mrpc(train: str, test: str, dev_ids: str) -> dict[str, str]:
    """Returns {train.tsv, dev.tsv, test.tsv: text}.

    Args:
      train, test: columns Quality, #1 ID, #2 ID, #1 String, #2 String.
      dev_ids: the two ids of the training rows that are GLUE's dev set, a pair per line.
    """
    header, *rows = _rows(train)
    ids = {tuple(pair) for pair in _rows(dev_ids)}
    tables = {
        "train.tsv": [header, *(row for row in rows if tuple(row[1:3]) not in ids)],
        "dev.tsv": [header, *(row for row in rows if tuple(row[1:3]) in ids)],
        "test.tsv": [["index", *header[1:]]],
    }
    tables["test.tsv"] += [[str(index), *row[1:]] for index, row in enumerate(_rows(test)[1:])]
    return {name: "".join("\t".join(row) + "\n" for row in table) for name, table in tables.items()}


def _rows(text: str) -> list[list[str]]:
    return [line.removesuffix("\r").split("\t") for line in text.rstrip("\r\n").split("\n")]


def fetch(base_url: str, data_dir: str, folder: str) -> str:
    """Downloads the missing files of a folder; returns a word or two about it for the user."""
    if all(os.path.exists(os.path.join(data_dir, name)) for name in files_of(folder)):
        return "already there"
    os.makedirs(os.path.join(data_dir, folder), exist_ok=True)
    if folder == "MRPC":
        fetch_mrpc(base_url, data_dir)
    elif folder == "AX":
        download(base_url, AX, os.path.join(data_dir, *files_of(folder)))
    else:
        fetch_archive(base_url, data_dir, folder)
    return "downloaded"


def describe_rows(data_dir: str, folder: str) -> str:
    """Returns a line with the number of rows of each file, and the published number if it differs."""
    texts, headerless = [], {split.files[0] for split in _SPLITS if split.columns}
    for name, published in files_of(folder).items():
        with open(os.path.join(data_dir, name), "rb") as file:
            rows = file.read().rstrip().count(b"\n") + (name in headerless)
        differs = "" if rows == published else f" (published: {published:,})"
        texts.append(f"{os.path.basename(name)} {rows:,} rows{differs}")
    return ", ".join(texts)


def run_glue() -> None:
    flags = Glue.parse()
    if flags.base_url.split("://")[0] not in ("https", "http", "file"):
        raise ConfigError(f"--base_url={flags.base_url} does not start with https://, http:// or file://.")
    kinds = OSError, zipfile.BadZipFile, KeyError
    for folder in folders_of(flags.tasks):
        with naming_output(f"{flags.data_dir}, {folder}", "data_dir", kinds):
            done = fetch(flags.base_url, flags.data_dir, folder)
            print(f"{folder}: {done}: {describe_rows(flags.data_dir, folder)}.")
