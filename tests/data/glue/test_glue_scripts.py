"""The zip file for GLUE's server, and the download of GLUE's data from a server of our own."""

import hashlib
import http.server
import io
import os
import threading
import zipfile

import numpy as np
import pytest

from official.cli import glue as script
from official.cli import scores
from official.data.glue import files as files_lib
from official.data.glue.tasks import TASKS
from official.io.errors import ConfigError
from tests.refusals import assert_refused


@pytest.fixture
def download(run_program, tmp_path):
    """Returns a function that runs the program of the download, with a base URL, into the folder `data`."""

    def run(url, *flags):
        return run_program(script.run_glue, f"--data_dir={tmp_path}/data", f"--base_url={url}", *flags).out

    return run


@pytest.fixture
def submit(run_program):
    """Returns a function that runs the program of the zip file."""

    def run(output, *flags):
        given = ["--predictions", *flags, f"--output={output}"]
        return run_program(scores.run_glue_submission, *given).out

    return run


# ------------------------------------------------------------------------------------------------------------
# The submission


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Returns folders of runs, each with predictions of one task; of QQP three rows are the published number,
    for files of a size for tests."""
    test, folders = TASKS["qqp"].splits["test"], []
    monkeypatch.setitem(TASKS["qqp"].splits, "test", type(test)(test.files, 3))
    for name, task in TASKS.items():
        rows = np.arange(task.splits["test"].rows)
        folders.append(tmp_path / "runs" / name)
        labels = rows % (6 if task.is_regression else len(task.labels))
        files_lib.write_predictions(task, labels, str(folders[-1]))
        (folders[-1] / "result.json").write_text("{}")
    return folders


def test_the_zip_file_has_all_files_and_nothing_else(runs, tmp_path, submit):
    output = tmp_path / "out" / "submission.zip"
    lines = submit(output, *runs).splitlines()
    with zipfile.ZipFile(output) as archive:
        assert archive.namelist() == [task.submission_file for task in TASKS.values()]
        for task, folder in zip(TASKS.values(), runs):
            assert archive.read(task.submission_file) == (folder / task.submission_file).read_bytes()
    assert lines[0] == f"CoLA.tsv     {runs[0]}/CoLA.tsv, 1,063 predictions" and len(lines) == 12
    assert lines[-1] == f"{output}: 11 files." and os.listdir(output.parent) == ["submission.zip"]
    first = output.read_bytes()
    submit(output, *runs, "--overwrite")
    assert output.read_bytes() == first


def test_what_is_missing_or_wrong_is_listed_and_nothing_is_written(runs, tmp_path, submit, capsys):
    output = tmp_path / "submission.zip"
    (runs[-1] / "WNLI.tsv").unlink()
    text = (runs[0] / "CoLA.tsv").read_text()
    (runs[0] / "CoLA.tsv").write_text(text[: text.rindex("1062")])
    wrong = "CoLA.tsv: 1,062 predictions, expected 1,063"
    message = f"2 of 11 files are invalid, nothing was written: .*{wrong}; WNLI.tsv is missing.$"
    with pytest.raises(ConfigError, match=message):
        submit(output, *runs)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"CoLA.tsv     {runs[0]}/{wrong}."
    assert lines[-1] == "WNLI.tsv     WNLI.tsv is missing." and len(lines) == 11 and not output.exists()


def test_folders_without_a_file_of_a_task_or_with_two_are_refused(runs, tmp_path, submit):
    files_lib.write_predictions(TASKS["cola"], np.zeros(1063, int), str(runs[1]))
    cases = (
        (tmp_path, "11 of 11 files are invalid, nothing was written: CoLA.tsv is missing; "),
        (*runs, f"{runs[0]}/", "1 of 11 .*both .*/cola/CoLA.tsv and .*/mnli/CoLA.tsv exist"),  # twice is one
        ("/nowhere", "--predictions=/nowhere is not a folder"),
    )
    assert_refused(lambda *flags: submit(tmp_path / "none.zip", *flags), cases)


# ------------------------------------------------------------------------------------------------------------
# The download

_MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


def published_files() -> dict:
    """Returns {source of the script: content}: the published files in small."""
    found = {}
    for folder, source in script.ARCHIVES.items():
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{folder}/original/raw.tsv", "not wanted")
            for number, name in enumerate(script.files_of(folder)):
                archive.writestr(name, f"{name} {number}\n" * 3)
        found[source] = buffer.getvalue()
    for source, numbers in ((script.MRPC_TRAIN, range(4)), (script.MRPC_TEST, range(4, 6))):
        rows = [f"{number % 2}\t{number}\t{number + 50}\ta {number}\tb {number}" for number in numbers]
        found[source] = ("\ufeff" + "\r\n".join([_MRPC_HEADER, *rows]) + "\r\n").encode()
    found[script.AX] = b"index\tsentence1\tsentence2\n0\ta\tb\n"
    found[script.MRPC_DEV_IDS] = b"3\t53\n1\t51\n"
    return found


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Writes small files under the published paths, and puts their sizes and sums in the script's tables."""
    small, folder = {}, tmp_path / "mirror"
    for source, content in published_files().items():
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        small[source] = script.Source(source.path, len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(script, "ARCHIVES", {name: small[source] for name, source in script.ARCHIVES.items()})
    for name in ("AX", "MRPC_TRAIN", "MRPC_TEST", "MRPC_DEV_IDS"):
        monkeypatch.setattr(script, name, small[getattr(script, name)])
    return folder


@pytest.fixture
def server(mirror):
    """Serves the mirror on this machine, in parts where `ranges` is set, and ends the first `cut` answers
    half way; yields (base URL, state)."""
    state = {"requests": [], "cut": 0, "ranges": True}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            first, path = int((self.headers.get("Range") or "bytes=0-")[6:-1]), mirror / self.path[1:]
            state["requests"].append((self.path, first))
            if not path.is_file():
                self.send_error(404)
                return
            content, first = path.read_bytes(), first if state["ranges"] else 0
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            stop = len(content) // 2 if state["cut"] else len(content)
            state["cut"] = max(0, state["cut"] - 1)
            self.wfile.write(content[first:stop])

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", state
        running.shutdown()


def files_in(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_all_tasks_are_downloaded_once_and_mrpc_is_split_as_glue_does(server, tmp_path, download):
    url, state = server
    data = tmp_path / "data"
    (data / "QNLI").mkdir(parents=True)
    (data / "QNLI" / "dev.tsv").write_text("my own\n")
    told = download(f"{url}/")
    assert (data / "QNLI" / "dev.tsv").read_text() == "my own\n"
    wanted = {file for task in TASKS.values() for file in (split.files[0] for split in task.splits.values())}
    raw = {"MRPC/dev_ids.tsv", "MRPC/msr_paraphrase_test.txt", "MRPC/msr_paraphrase_train.txt"}
    assert set(files_in(data)) == wanted | raw and len(wanted) == 30
    assert "CoLA: downloaded: train.tsv 3 rows (published: 8,551), " in told
    assert "MRPC: downloaded: train.tsv 2 rows (published: 3,668), dev.tsv 2 rows (published: 408), " in told
    assert (data / "MNLI" / "dev_mismatched.tsv").read_text() == "MNLI/dev_mismatched.tsv 3\n" * 3
    assert "CoLA: already there: " in download(url, "--tasks=all") and len(state["requests"]) == 12
    for split, numbers in (("train", (0, 2)), ("dev", (1, 3)), ("test", (4, 5))):
        lines = [
            f"{row if split == 'test' else number % 2}\t{number}\t{number + 50}\ta {number}\tb {number}"
            for row, number in enumerate(numbers)
        ]
        header = _MRPC_HEADER.replace("Quality", "index" if split == "test" else "Quality")
        assert (data / "MRPC" / f"{split}.tsv").read_text() == "\n".join([header, *lines]) + "\n"
        rows = files_lib.read_split(TASKS["mrpc"], split, str(data))
        assert len(rows) == 2 and not rows.problems
    # AX needs the data of MNLI.
    assert script.folders_of("ax, mnli-mm,cola") == ["MNLI", "AX", "CoLA"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_transfer_that_broke_off_is_resumed(server, tmp_path, download, ranges):
    url, state = server
    state.update(cut=1, ranges=ranges)
    size = script.ARCHIVES["CoLA"].size
    message = rf"CoLA.zip: the transfer ended after {size // 2:,} of {size:,} bytes. Run this again"
    with pytest.raises(ConfigError, match=message):
        download(url, "--tasks=cola")
    assert files_in(tmp_path / "data") == ["CoLA.zip.part"]
    download(url, "--tasks=cola")
    assert state["requests"] == [("/glue/data/CoLA.zip", 0), ("/glue/data/CoLA.zip", size // 2)]
    assert files_in(tmp_path / "data") == ["CoLA/dev.tsv", "CoLA/test.tsv", "CoLA/train.tsv"]


@pytest.mark.parametrize("change", [lambda data: b"X" + data[1:], lambda data: data + b"more"])
def test_another_file_is_refused_and_removed(server, mirror, tmp_path, download, change):
    archive = mirror / "glue" / "data" / "RTE.zip"
    content = archive.read_bytes()
    archive.write_bytes(change(content))
    with pytest.raises(ConfigError, match="RTE.zip is not the published file: .* with sha256 "):
        download(server[0], "--tasks=rte")
    assert files_in(tmp_path / "data") == []
    archive.write_bytes(content)
    download(server[0], "--tasks=rte")
    assert len(files_in(tmp_path / "data")) == 3


def test_what_cannot_be_downloaded_is_an_error(server, mirror, download):
    (mirror / "glue" / "data" / "CoLA.zip").unlink()
    cases = (
        (f"file://{mirror}", "--tasks=cola", "CoLA.zip cannot be reached: .*No such file"),
        (server[0], "--tasks=cola", "CoLA.zip: the server answers 404 Not Found"),
    )
    assert_refused(download, cases)
