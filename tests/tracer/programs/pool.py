"""Forked workers that make CUDA calls through ctypes, as those of data loaders do; a child that ends by os._exit."""

import ctypes
import multiprocessing
import os
import sys


def work(count: int) -> int:
    driver = ctypes.CDLL("libcuda.so.1")
    return sum(driver.cuStreamSynchronize(None) for _ in range(count))


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, [3] * 4, chunksize=2))
    print(work(4), flush=True)
    child = os.fork()
    if child == 0:
        work(2)
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit(13)
