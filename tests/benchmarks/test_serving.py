"""The command `benchmark serving`: its load against small servers, its figures, its flags, the whole way."""

import argparse
import dataclasses
import json
import os
import shutil
import sys
import time

import pytest

import harness
import serving
from official.io.errors import ConfigError
from programs import load
from programs.load import Asked
from tests.fixtures import ROOT

PAIRS = [("Who?", "Ada wrote."), ("What?", "Boats sail, Zoë."), ("When?", "Noon came.")]
# Contracts of a server: answers the first word; version 2 is served once its folder is there.
FAKE_SERVER = """
import json, os, signal, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
folder, port, delay = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
asked = []
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def say(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/metrics":
            n = len(asked)
            rows = [f'bert_batch_sequences_bucket{{le="{le}"}} {n}' for le in ("1.0", "+Inf")]
            rows += [f"bert_batch_sequences_count {n}", f"bert_batch_sequences_sum {n}"]
            return self.say(("# TYPE bert_batch_sequences histogram\\n" + "\\n".join(rows) + "\\n").encode())
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        states = [{"version": name, "state": "AVAILABLE"} for name in names]
        self.say(json.dumps({"model_version_status": states}).encode())
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        context = body["instances"][0]["context"]
        time.sleep(delay)
        asked.append(1)
        word = context.split()[0]
        found = {"text": word, "start": 0, "end": len(word), "score": 0.5}
        self.say(json.dumps({"predictions": [found]}).encode())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
FAKE_BARE = """
import collections, sys
sys.path.insert(0, "BENCHMARKS")
from programs import bare
Answer = collections.namedtuple("Answer", "text")
class Model:
    def answer_all(self, asked):
        return [Answer(context.split()[0]) for _, context in asked]
bare.make = lambda specification: Model()
bare.main()
"""


def reply(text="Ada", start=0, end=3, score=0.5):
    return json.dumps({"predictions": [{"text": text, "start": start, "end": end, "score": score}]}).encode()


def test_a_body_is_that_of_the_contract(tmp_path):
    found = load.read_questions(serving.write_questions(PAIRS, str(tmp_path)))
    instance = {"question": "What?", "context": "Boats sail, Zoë."}
    assert json.loads(found[1].body) == {"signature_name": "answer", "instances": [instance]}
    assert found[1].context == PAIRS[1][1]
    (one,) = [Asked(*one) for one in load.ask_all(1, "/x", found[:1], 1, 0.01)["asked"]]
    assert one.error.startswith("ConnectionRefusedError")
    # What is no answer is an error; places are counted in characters.
    none = (b"", b"[]", b'{"predictions": []}', b'{"predictions": [{"text": "Ada"}]}')
    for body in (*none, reply(start=1), reply(text="Bob"), reply(score=2.0), reply(score="0.5")):
        with pytest.raises(ValueError, match="no prediction|no answer"):
            load.text_of(body, PAIRS[0][1])
    assert load.text_of(reply("Zoë", 12, 15), PAIRS[1][1]) == "Zoë"
    assert load.text_of(reply("", 0, 0), PAIRS[1][1]) == ""


def make_run(ends, secs=10.0, errors=(), samples=((0.0, 100),)):
    every = [Asked(number, end - 0.1, end, "a", "") for number, end in enumerate(ends)]
    every += [Asked(0, end - 0.1, end, "", "lost") for end in errors]
    taken = [serving.Sample(100 + at, size) for at, size in samples]
    return serving.Run(2, secs, 100.0, every, 0.5, 9.0, taken)


def test_figures_of_a_run():
    """Requests outside of the time are not counted; a new version splits them; memory is split by time."""
    run = make_run([99.0, 100.0, 100.5, 110.0, 110.1], errors=[99.5, 105.0])
    assert [one.number for one in run.counted] == [2, 3]
    assert run.block.sequences_per_sec == 0.2 and run.block.secs == pytest.approx([0.1, 0.1])
    assert run.errors == ["lost", "lost"]  # those outside, too: none may be lost
    assert run.between(1, 2) == {"requests": 0, "latency_ms": None}
    # So is a server that does not end well.
    assert serving.errors_of([run, run], 0) == ["lost"] * 4
    assert serving.errors_of([run], -9)[2:] == ["bert serve ended with code -9 after SIGTERM"]
    run = make_run([101.0, 102.0, 104.0, 108.0, 109.0], errors=[105.0])
    row = serving.row_of_reload(run, {"appeared": 103.0, "swapped": 107.5}, {0: "a", 1: "b"})
    assert (row["appeared_secs"], row["swapped_secs"]) == (3.0, 7.5)
    assert [row[name]["requests"] for name in ("before", "loading", "after")] == [2, 1, 2]
    assert (row["errors"], row["requests"], row["same_answers"]) == (1, 6, 0.5)
    assert [at for at, _ in row["requests_over_time"]] == [1.0, 2.0, 4.0, 8.0, 9.0]
    sizes = {0: 9, 19.9: 8, 20: 5, 39.9: 6, 40.1: 7, 60: 4, 61: 99}
    samples = [serving.Sample(*each) for each in sizes.items()]
    found = serving.peaks_of(samples, 60.0, 60.0)
    assert found == (20.0, 6, 7) and found.growth == pytest.approx(1 / 6)
    assert serving.peaks_of(samples, 61.0, 3.0).window_secs == 1.0


def metrics_text(counts, total):
    name, own = "bert_batch_sequences", 'signature="answer"'
    rows = [f'{name}_bucket{{{own},le="{le}"}} {count}' for le, count in counts.items()]
    rows += [f"{name}_count{{{own}}} {max(counts.values())}", f"{name}_sum{{{own}}} {total}"]
    return "\n".join([f"# TYPE {name} histogram", *rows, "# TYPE other gauge", "other 1", ""])


def test_sizes_of_batches_between_two_moments():
    before = serving.read_batches(metrics_text({"1.0": 2, "8.0": 2, "+Inf": 2}, 2))
    after = serving.read_batches(metrics_text({"1.0": 3, "8.0": 6, "+Inf": 6}, 30))
    found = after.since(before)
    assert found.mean == 7.0 and found.shares() == {"1": 0.25, "8": 0.75}
    assert before.since(before).mean is None and before.since(before).shares() == {}
    with pytest.raises(ConfigError, match="lacks bert_batch_sequences"):
        serving.read_batches("# TYPE up gauge\nup 1\n")


@pytest.fixture(name="fakes")
def fixture_fakes(monkeypatch, tmp_path):
    """Puts small programs in the place of our server, a peer and the bare model."""
    server, model = tmp_path / "server.py", tmp_path / "bare.py"
    shutil.copy(ROOT / "benchmarks" / "programs" / "load.py", tmp_path)
    server.write_text(FAKE_SERVER)
    model.write_text(FAKE_BARE.replace("BENCHMARKS", str(ROOT / "benchmarks")))

    def words(delay):
        return lambda flags, model, port: [sys.executable, str(server), model, str(port), delay]

    ours = dataclasses.replace(serving.OURS, words=words("0.001"))
    peer = dataclasses.replace(serving.PEERS["litserve"], words=words("0.01"))
    monkeypatch.setattr(serving, "OURS", ours)
    monkeypatch.setattr(serving, "PEERS", {"litserve": peer})
    monkeypatch.setattr(harness, "PROGRAMS", str(tmp_path))
    monkeypatch.setattr(serving, "SYSTEMS", {"bert serve": ours, "litserve": peer})
    return server


def make_flags(tmp_path, **given):
    (tmp_path / "model").mkdir(exist_ok=True)
    values = {"export_dir": str(tmp_path / "model"), "clients": [1, 2], "secs": 2.0, "rounds": 2}
    values |= {"round_secs": 1.0, "reload": True, "peers": ["litserve"], "environments": "nothing"}
    values |= {"backend": "tensorflow", "dtype": "fp32", "threads": 2, "max_batch_size": 8}
    return argparse.Namespace(**values | {"batch_delay_ms": 1.0} | given)


@pytest.mark.slow
def test_everything_is_measured_in_one_run(fakes, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "WARM_SECS", 0.1)
    flags = make_flags(tmp_path, secs=1.5, rounds=1)
    measured = serving.measure(flags, PAIRS, str(tmp_path / "work"))
    cases = "1 client: bert serve|1 client: LitServe|2 clients: bert serve|2 clients: LitServe"
    names = [f"fp32, {name}" for name in f"{cases}|batch 1: the bare model".split("|")]
    assert [row["name"] for row in measured["cases"]] == names
    keys = {"name", "dtype", "max_seq_length", "batch", "backend", "sequences_per_sec", "latency_ms"}
    assert all(keys <= set(row) and row["errors"] == 0 for row in measured["cases"])
    assert {row["same_answers"] for row in measured["cases"]} == {1.0}
    assert measured["errors"] == [] and measured["load"]["batches"]["mean_size"] == 1.0
    assert measured["load"]["peak_memory"]["last_bytes"] > 1e6
    moments = measured["reload"]
    assert 0 < moments["appeared_secs"] < moments["swapped_secs"] < moments["secs"]
    assert measured["exit_codes"] == {"bert serve": 0, "litserve": 0}
    text = "\n".join([serving.table(measured), *serving.verdicts(measured)])
    wanted = ("0 of", "x fp32, batch 1: the bare model", "x fp32, 2 clients: LitServe", ", 0 of")
    assert all(each in text for each in (*wanted, "a new version: served"))
    json.dumps(measured, allow_nan=False)


def test_a_server_stands_still_and_goes_on(fakes, tmp_path):
    flags = make_flags(tmp_path)
    with serving.Server(serving.OURS, flags, flags.export_dir, str(tmp_path / "log")) as server:
        assert server.get("/healthz")[0] == 200
        server.pause()
        state = lambda: open(f"/proc/{server.process}/stat").read().rpartition(")")[2].split()[0]
        until = time.monotonic() + 5
        while state() != "T" and time.monotonic() < until:
            time.sleep(0.01)
        assert state() == "T"
        server.resume()
        assert server.get("/healthz")[0] == 200
        server.pause()
    assert server.exit_code == 0  # also one that stands still ends
    fakes.write_text("raise SystemExit('no such model')")
    with pytest.raises(ConfigError, match="--export_dir: bert serve ended with code 1: no such model"):
        serving.Server(serving.OURS, flags, flags.export_dir, str(tmp_path / "log"))


def test_command_lines_of_servers(tmp_path):
    flags = make_flags(tmp_path)
    words = serving.OURS.words(flags, "models", 7)
    told = "--dtype=fp32 --backend=tensorflow --threads=2 --max_batch_size=8 --batch_delay_ms=1.0"
    expected = f"serve --export_dir=models --port=7 {told} --methods=answer --poll_secs=1.0"
    assert words[-10:] == expected.split()
    asked = json.loads(serving.PEERS["litserve_fast_queue"].words(flags, "model", 7)[-1])
    assert asked["fast_queue"] and asked["batch_delay_ms"] == 1.0 and asked["model"] == "model"
    paths = serving.variables(serving.PEERS["litserve"], str(tmp_path))["PYTHONPATH"].split(os.pathsep)
    assert paths[1].startswith(str(tmp_path / "litserve" / "lib")) and paths[1].endswith("site-packages")
