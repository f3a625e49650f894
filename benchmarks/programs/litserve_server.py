"""The same model in LitServe: the program of a user who serves `official.inference` with LitServe.

The only argument is JSON: port, model, backend, dtype, threads, max_batch_size,
batch_delay_ms, fast_queue. It answers POST /predict as our server answers, and GET /health.
"""

import json
import sys

import litserve


class Answers(litserve.LitAPI):
    """Answers questions in batches."""

    def __init__(self, asked: dict):
        super().__init__(
            max_batch_size=asked["max_batch_size"],
            batch_timeout=asked["batch_delay_ms"] / 1000,
        )
        self.asked = asked

    def setup(self, device):
        import official

        official.choose_kernels(self.asked["dtype"])
        from official.inference import load

        names = ("backend", "dtype", "threads")
        self.model = load(self.asked["model"], **{name: self.asked[name] for name in names})
        self.model.prepare("answer")

    def decode_request(self, request, **_):
        (instance,) = request["instances"]
        return instance["question"], instance["context"]

    def batch(self, inputs):
        return inputs

    def predict(self, asked, **_):
        return [{"batch": len(asked), "answer": answer} for answer in self.model.answer_all(asked)]

    def unbatch(self, output):
        return output

    def encode_response(self, output, **_):
        text, score, start, end = output["answer"]
        prediction = {"text": text, "start": start, "end": end, "score": score}
        return {"predictions": [prediction], "batch": output["batch"]}


if __name__ == "__main__":
    ASKED = json.loads(sys.argv[1])
    SERVER = litserve.LitServer(
        Answers(ASKED), accelerator="cpu", workers_per_device=1, fast_queue=ASKED["fast_queue"]
    )
    SERVER.run(port=ASKED["port"], host="127.0.0.1", log_level="warning", generate_client_file=False)
