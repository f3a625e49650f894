"""Trains BERT: the command `bert train`.

    python train.py --flagfile=configs/quickstart.flags [--name=value ...]
    python train.py --flagfile=configs/mlperf_v100.flags --plan
    python train.py --help

Exit codes: 0 finished or target reached, 1 target not reached, 2 bad input, 3 non-finite loss, 4 a peer
process was lost or did not come (start all again), 129 / 130 / 143 saved on a signal.
"""

from official.cli.main import script

if __name__ == "__main__":
    script("train")
