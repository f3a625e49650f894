"""The zip file for GLUE's server, and the download of GLUE's data from a server of our own."""

import functools
import hashlib
import http.server
import io
import os
import re
import socket
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest

from official.cli import glue as download_glue_data
from official.cli import scores as make_glue_submission
from official.data.glue import files as files_lib
from official.data.glue.tasks import TASKS
from official.io.errors import ConfigError
from tests.conftest import ROOT


def call(command, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["script.py", *map(str, arguments)])
    command()


# ------------------------------------------------------------------------------------------------------------
# The submission


@pytest.fixture
def runs(tmp_path):
    """Returns folders of runs, each with predictions of one task; QQP's are few, as those of its test file in
    data/."""
    folders = []
    for name, task in TASKS.items():
        rows = 3 if name == "qqp" else task.splits["test"].rows
        predictions = np.arange(rows) % 6 if task.is_regression else np.arange(rows) % len(task.labels)
        folders.append(tmp_path / "runs" / name)
        files_lib.write_predictions(task, predictions, str(folders[-1]))
        (folders[-1] / "result.json").write_text("{}")
    return folders


@pytest.fixture
def small_qqp(monkeypatch):
    """Makes three rows the published number of QQP, for files of a size for tests."""
    test = TASKS["qqp"].splits["test"]
    monkeypatch.setitem(TASKS["qqp"].splits, "test", type(test)(test.files, 3))


def test_the_zip_file_has_all_files_and_nothing_else(runs, small_qqp, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out" / "submission.zip"
    call(make_glue_submission.run_glue_submission, monkeypatch, "--predictions", *runs, f"--output={output}")
    with zipfile.ZipFile(output) as archive:
        assert archive.namelist() == [task.submission_file for task in TASKS.values()]
        for task, folder in zip(TASKS.values(), runs):
            assert archive.read(task.submission_file) == (folder / task.submission_file).read_bytes()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"CoLA.tsv     {runs[0]}/CoLA.tsv, 1,063 predictions" and len(lines) == 12
    assert lines[-1] == f"{output}: 11 of 11 files." and os.listdir(output.parent) == ["submission.zip"]
    first = output.read_bytes()
    call(
        make_glue_submission.run_glue_submission,
        monkeypatch,
        "--predictions",
        *runs,
        f"--output={output}",
        "--overwrite",
    )
    assert output.read_bytes() == first


def test_what_is_missing_or_wrong_is_listed_and_nothing_is_written(
    runs, small_qqp, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "submission.zip"
    (runs[-1] / "WNLI.tsv").unlink()
    text = (runs[0] / "CoLA.tsv").read_text()
    (runs[0] / "CoLA.tsv").write_text(text[: text.rindex("1062")])
    with pytest.raises(
        ConfigError,
        match="nothing is written, 2 of 11 files are not right: .*CoLA.tsv: 1,062 predictions, expected"
        " 1,063; WNLI.tsv is missing.$",
    ):
        call(
            make_glue_submission.run_glue_submission,
            monkeypatch,
            "--predictions",
            *runs,
            f"--output={output}",
        )
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == f"CoLA.tsv     {runs[0]}/CoLA.tsv: 1,062 predictions, expected 1,063."
        and lines[-1] == "WNLI.tsv     missing"
    )
    assert len(lines) == 11 and not output.exists()


def test_some_tasks_are_zipped_where_that_is_asked_for(runs, tmp_path, monkeypatch):
    output = tmp_path / "submission.zip"
    call(
        make_glue_submission.run_glue_submission,
        monkeypatch,
        "--predictions",
        runs[0],
        runs[-1],
        f"--output={output}",
        "--allow_missing",
    )
    assert zipfile.ZipFile(output).namelist() == ["CoLA.tsv", "WNLI.tsv"]
    with pytest.raises(ConfigError, match="has no file of predictions"):
        call(
            make_glue_submission.run_glue_submission,
            monkeypatch,
            "--predictions",
            tmp_path,
            f"--output={tmp_path}/none.zip",
            "--allow_missing",
        )


def test_predictions_are_counted_against_the_test_files(runs, tmp_path, monkeypatch):
    data = tmp_path / "data"
    for rows, match in ((3, None), (4, "QQP.tsv: 3 predictions, expected 4")):
        (data / "QQP").mkdir(parents=True, exist_ok=True)
        (data / "QQP" / "test.tsv").write_text(
            "id\tquestion1\tquestion2\n" + "".join(f"{row}\ta\tb\n" for row in range(rows))
        )
        arguments = (
            "--predictions",
            runs[7],
            f"--data_dir={data}",
            f"--output={tmp_path}/{rows}.zip",
            "--allow_missing",
        )
        if match is None:
            call(make_glue_submission.run_glue_submission, monkeypatch, *arguments)
        else:
            with pytest.raises(ConfigError, match=match):
                call(make_glue_submission.run_glue_submission, monkeypatch, *arguments)


def test_a_task_in_two_folders_is_an_error(runs, tmp_path, monkeypatch):
    files_lib.write_predictions(TASKS["cola"], np.zeros(1063, int), str(runs[1]))
    arguments = ("--predictions", *runs[:2], f"--output={tmp_path}/a.zip", "--allow_missing")
    with pytest.raises(ConfigError, match="/cola/CoLA.tsv and .*/mnli/CoLA.tsv are both there"):
        call(make_glue_submission.run_glue_submission, monkeypatch, *arguments)
    with pytest.raises(ConfigError, match="--predictions=/nowhere is not a folder"):
        call(
            make_glue_submission.run_glue_submission,
            monkeypatch,
            "--predictions",
            "/nowhere",
            f"--output={tmp_path}/a.zip",
        )


def test_the_same_folder_named_twice_is_one_folder(runs, tmp_path, monkeypatch):
    call(
        make_glue_submission.run_glue_submission,
        monkeypatch,
        "--predictions",
        runs[0],
        f"{runs[0]}/",
        f"--output={tmp_path}/a.zip",
        "--allow_missing",
    )


# ------------------------------------------------------------------------------------------------------------
# The download

_MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, in parts where `ranges` is set; ends the first `cut` answers half way."""

    def __init__(self, *arguments, state, **keywords):
        self.state = state
        super().__init__(*arguments, **keywords)

    def do_GET(self):
        first = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.state["requests"].append((self.path, first))
        path = self.translate_path(self.path)
        if not os.path.isfile(path):
            self.send_error(404)
            return
        with open(path, "rb") as file:
            content = file.read()
        first = first if self.state["ranges"] else 0
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        stop = len(content) // 2 if self.state["cut"] else len(content)
        self.state["cut"] = max(0, self.state["cut"] - 1)
        self.wfile.write(content[first:stop])

    def log_message(self, *arguments):
        pass


def zip_of(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def mirror_files() -> dict:
    """Returns {source of the script: content}: the published files in small."""
    module = download_glue_data
    mrpc = [f"{number % 2}\t{number}\t{number + 50}\ta {number}\tb {number}" for number in range(6)]
    files = {
        folder: {name: f"{name} {row}\n" * 3 for row, name in enumerate(module.files_of(folder))}
        for folder in module.ARCHIVES
    }
    return {
        **{
            source: zip_of({**files[folder], f"{folder}/original/raw.tsv": "not wanted"})
            for folder, source in module.ARCHIVES.items()
        },
        module.AX: b"index\tsentence1\tsentence2\n0\ta\tb\n",
        module.MRPC_TRAIN: ("\ufeff" + "\r\n".join([_MRPC_HEADER, *mrpc[:4]]) + "\r\n").encode(),
        module.MRPC_TEST: ("\ufeff" + "\r\n".join([_MRPC_HEADER, *mrpc[4:]]) + "\r\n").encode(),
        module.MRPC_DEV_IDS: b"3\t53\n1\t51\n",
    }


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Writes small files under the published paths, and puts their sizes and sums in the script's tables."""
    module, folder = download_glue_data, tmp_path / "mirror"
    small = {}
    for source, content in mirror_files().items():
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        small[source] = module.Source(source.path, len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(module, "ARCHIVES", {name: small[source] for name, source in module.ARCHIVES.items()})
    for name in ("AX", "MRPC_TRAIN", "MRPC_TEST", "MRPC_DEV_IDS"):
        monkeypatch.setattr(module, name, small[getattr(module, name)])
    return folder


@pytest.fixture
def server(mirror):
    """Serves the mirror on this machine; yields (base URL, state)."""
    state = {"requests": [], "cut": 0, "ranges": True}
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, state=state, directory=str(mirror))
    ) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", state
        running.shutdown()


def files_in(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_all_tasks_are_downloaded_once(server, tmp_path, monkeypatch, capsys):
    url, state = server
    data = tmp_path / "data"
    call(download_glue_data.run_glue, monkeypatch, f"--data_dir={data}", f"--base_url={url}/")
    wanted = {file for task in TASKS.values() for file in (split.files[0] for split in task.splits.values())}
    raw = {"MRPC/dev_ids.tsv", "MRPC/msr_paraphrase_test.txt", "MRPC/msr_paraphrase_train.txt"}
    assert set(files_in(data)) == wanted | raw
    assert len(state["requests"]) == 12
    assert "CoLA: downloaded: train.tsv 3 rows (published: 8,551), " in capsys.readouterr().out
    assert (data / "MNLI" / "dev_mismatched.tsv").read_text() == "MNLI/dev_mismatched.tsv 3\n" * 3
    call(download_glue_data.run_glue, monkeypatch, f"--data_dir={data}", f"--base_url={url}", "--tasks=all")
    assert len(state["requests"]) == 12 and "CoLA: already there: " in capsys.readouterr().out


def test_mrpc_is_split_as_glue_does(mirror, tmp_path, monkeypatch, capsys):
    data = tmp_path / "data"
    call(
        download_glue_data.run_glue,
        monkeypatch,
        f"--data_dir={data}",
        f"--base_url=file://{mirror}",
        "--tasks=mrpc",
    )
    assert (
        data / "MRPC" / "train.tsv"
    ).read_text() == f"{_MRPC_HEADER}\n0\t0\t50\ta 0\tb 0\n0\t2\t52\ta 2\tb 2\n"
    assert (
        data / "MRPC" / "dev.tsv"
    ).read_text() == f"{_MRPC_HEADER}\n1\t1\t51\ta 1\tb 1\n1\t3\t53\ta 3\tb 3\n"
    assert (
        data / "MRPC" / "test.tsv"
    ).read_text() == f"index{_MRPC_HEADER[7:]}\n0\t4\t54\ta 4\tb 4\n1\t5\t55\ta 5\tb 5\n"
    rows = {
        split: files_lib.read_split(TASKS["mrpc"], split, str(data)) for split in ("train", "dev", "test")
    }
    assert all(len(part) == 2 and not part.problems for part in rows.values())
    assert capsys.readouterr().out.startswith(
        "MRPC: downloaded: train.tsv 2 rows (published: 3,668), dev.tsv 2 rows (published: 408), "
    )


@pytest.mark.parametrize("ranges", [True, False])
def test_a_transfer_that_broke_off_is_resumed(server, tmp_path, monkeypatch, ranges):
    url, state = server
    state.update(cut=1, ranges=ranges)
    size = download_glue_data.ARCHIVES["CoLA"].size
    arguments = (f"--data_dir={tmp_path}/data", f"--base_url={url}", "--tasks=cola")
    with pytest.raises(
        ConfigError,
        match=rf"CoLA.zip: the transfer ended after {size // 2:,} of {size:,} bytes. Run this again",
    ):
        call(download_glue_data.run_glue, monkeypatch, *arguments)
    assert files_in(tmp_path / "data") == ["CoLA.zip.part"]
    call(download_glue_data.run_glue, monkeypatch, *arguments)
    assert state["requests"] == [("/glue/data/CoLA.zip", 0), ("/glue/data/CoLA.zip", size // 2)]
    assert files_in(tmp_path / "data") == ["CoLA/dev.tsv", "CoLA/test.tsv", "CoLA/train.tsv"]


@pytest.mark.parametrize("change", [lambda data: b"X" + data[1:], lambda data: data + b"more"])
def test_another_file_is_refused_and_removed(server, mirror, tmp_path, monkeypatch, change):
    archive = mirror / "glue" / "data" / "RTE.zip"
    content = archive.read_bytes()
    archive.write_bytes(change(content))
    arguments = (f"--data_dir={tmp_path}/data", f"--base_url={server[0]}", "--tasks=rte")
    with pytest.raises(ConfigError, match="RTE.zip is not the published file: .* with sha256 "):
        call(download_glue_data.run_glue, monkeypatch, *arguments)
    assert files_in(tmp_path / "data") == []
    archive.write_bytes(content)
    call(download_glue_data.run_glue, monkeypatch, *arguments)
    assert len(files_in(tmp_path / "data")) == 3


def test_files_that_are_there_are_kept(mirror, tmp_path, monkeypatch):
    own = tmp_path / "data" / "QNLI" / "dev.tsv"
    own.parent.mkdir(parents=True)
    own.write_text("my own\n")
    call(
        download_glue_data.run_glue,
        monkeypatch,
        f"--data_dir={tmp_path}/data",
        f"--base_url=file://{mirror}",
        "--tasks=qnli",
    )
    assert own.read_text() == "my own\n" and files_in(tmp_path / "data") == [
        "QNLI/dev.tsv",
        "QNLI/test.tsv",
        "QNLI/train.tsv",
    ]


def test_ax_needs_the_data_of_mnli():
    assert download_glue_data.folders_of("ax") == ["MNLI", "AX"]
    assert download_glue_data.folders_of("mnli, mnli-mm,cola") == ["MNLI", "CoLA"]
    assert download_glue_data.folders_of("all") == [
        "CoLA",
        "MNLI",
        "AX",
        "MRPC",
        "SST-2",
        "STS-B",
        "QQP",
        "QNLI",
        "RTE",
        "WNLI",
    ]


def test_every_file_of_the_table_has_a_source():
    folders = set(download_glue_data.folders_of("all"))
    assert folders == {*download_glue_data.ARCHIVES, "AX", "MRPC"}
    assert sum(len(download_glue_data.files_of(folder)) for folder in folders) == 30


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--tasks=colla"], r"--tasks=colla is no GLUE task \(did you mean cola\?\)"),
        (["--base_url=ftp://x"], "--base_url=ftp://x does not start"),
        (
            ["--base_url=file:///nowhere"],
            "file:///nowhere/glue/data/CoLA.zip cannot be reached: .*No such file",
        ),
    ],
)
def test_bad_flags_are_errors(tmp_path, monkeypatch, arguments, message):
    with pytest.raises(ConfigError, match=message):
        call(download_glue_data.run_glue, monkeypatch, f"--data_dir={tmp_path}/data", *arguments)


def test_a_file_that_the_server_has_not_is_an_error(server, mirror, tmp_path, monkeypatch):
    (mirror / "glue" / "data" / "CoLA.zip").unlink()
    with pytest.raises(ConfigError, match="CoLA.zip: the server answers 404 Not Found"):
        call(
            download_glue_data.run_glue,
            monkeypatch,
            f"--data_dir={tmp_path}/data",
            f"--base_url={server[0]}",
            "--tasks=cola",
        )


@pytest.mark.parametrize(
    "script, arguments",
    [
        (
            "download_glue_data.py",
            ["--tasks=cola", "--data_dir={folder}/data", "--base_url=http://127.0.0.1:{port}"],
        ),
        ("make_glue_submission.py", ["--predictions", "{folder}", "--output={folder}/a.zip"]),
    ],
)
def test_a_failure_is_one_line_and_exit_code_2(tmp_path, script, arguments):
    with socket.socket() as unused:  # bound, but nobody listens
        unused.bind(("127.0.0.1", 0))
        arguments = [argument.format(folder=tmp_path, port=unused.getsockname()[1]) for argument in arguments]
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / script, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2 and re.fullmatch(rf"{script}: [^\n]+\n", done.stderr), done.stderr
    expected = (
        "cannot be reached: [Errno 111] Connection refused"
        if "download" in script
        else "nothing is written, 11 of 11 files"
    )
    assert expected in done.stderr and files_in(tmp_path) == []
