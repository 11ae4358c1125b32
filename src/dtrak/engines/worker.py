"""A process of the pool: it receives the work and its context, then one job after the other, and sends each result.

    python -m dtrak.engines.worker DESCRIPTOR

DESCRIPTOR is its end of the connection to the pool. Its standard input is used only to notice that the pool's process
has ended, which closes it.
"""

import os
import pickle
import sys
import threading
from multiprocessing.connection import Connection

from dtrak.engines.engine import attempt, sendable


def main() -> None:
    threading.Thread(target=_end_with_the_pool, daemon=True).start()
    connection: Connection = Connection(int(sys.argv[1]))
    try:
        work, context = pickle.loads(connection.recv_bytes())
        while True:
            connection.send(attempt(work, context, pickle.loads(connection.recv_bytes())))
    except (EOFError, BrokenPipeError):  # the pool has closed the connection
        return
    except Exception as error:  # a job or a result cannot be pickled
        connection.send(sendable(error))


def _end_with_the_pool() -> None:
    os.read(0, 1)  # nothing is ever written there
    os._exit(1)


if __name__ == "__main__":
    main()
