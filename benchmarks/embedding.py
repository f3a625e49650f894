"""Times the embedding of a file's texts, as whole processes, compared with sentence-transformers.

  python benchmarks/embedding.py --checkpoint=models/minilm --data_dir=data --work_dir=runs/embedding \\
    --make_environments --output=results/embedding

Both read the same sentence-transformers folder and the same CSV file: sentences of SST-2 and QNLI under
--data_dir/glue, shuffled, and repeated up to --rows. Ours is `bert embed`, in float32; the peer uses the
batch size of --batch_sizes that is fastest on --trial_rows. Both run in turns and write a NumPy file. The
largest difference between the files is reported with the times.
"""

import numpy as np

import harness
import predict_file

SENTENCE_TRANSFORMERS = harness.Environment(
    "sentence_transformers",
    ("torch==2.13.0", "transformers==5.24.0", "sentence-transformers==5.7.0", "numpy"),
)


_PEER = predict_file.Peer(
    "sentence-transformers", SENTENCE_TRANSFORMERS, "sentence_vectors.py", "embed_secs", "texts"
)


class Main(predict_file.RowsFlags):
    """Flags of the command."""

    batch_sizes: str = "8,32,128"
    max_seq_length: int = 256


def main() -> None:
    flags = Main.parse()
    apart: list[float] = []
    look = lambda own, theirs: apart.append(float(np.abs(np.load(own) - np.load(theirs)).max()))
    record, bars, _ = predict_file.compare(flags, "embed", _PEER, ".npy", look)
    record["largest_difference"] = max(apart)
    print(f"{record['ratio']:.2f} x {record['best_peer']}, vectors up to {max(apart):.1e} apart")
    title = f"Vectors of {flags.rows:,} texts of a file, whole processes"
    harness.write(flags, record, bars, title, "texts per second")


if __name__ == "__main__":
    harness.main(main)
