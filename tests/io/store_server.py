"""A server of the S3 protocol on this machine, for tests: python -m tests.io.store_server

Writes its address in a line; ends when stdin does.
"""

import os
import sys


def main() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
