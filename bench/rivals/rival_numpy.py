"""NumPy: what it has one function for."""
import numpy as np

from run import Never


def start(name, threads):
    return np.__version__


class Job:
    def __init__(self, work):
        if work.kind == "concat" and not work.gradient and work.what != "computed":
            self.f = (lambda: np.where(work.which, *work.x)) if work.what == "select" else lambda: np.concatenate(work.x, work.axis)
            return
        if work.kind != "order":
            raise Never(work.kind)
        x = work.x
        top_k = lambda: -np.sort(np.partition(-x, work.k - 1, 1)[:, : work.k], 1)
        self.f = {"top_k": top_k, "sort": lambda: np.sort(x, 1), "cumsum": lambda: np.cumsum(x, 1)}[work.what]

    def run(self, times):
        for _ in range(times):
            self.f()

    def result(self):
        return {"y": self.f()}


make = Job
