"""Starts of ONNX models, one thread: usage: starts.py TENON ROUNDS MODEL.onnx ...

In turns, milliseconds, median / fastest: the whole process `tenon run -q` with an empty cache and with what that left there, and
ONNX Runtime's InferenceSession and one run in a process of its own, without Python's start. All files are in the page cache."""
import os
import statistics
import subprocess
import sys
import tempfile
import time

RIVAL = """
import sys, time
import numpy as np, onnxruntime as ort
ort.set_default_logger_severity(3)
o = ort.SessionOptions()
o.intra_op_num_threads = o.inter_op_num_threads = 1
begin = time.perf_counter()
s = ort.InferenceSession(sys.argv[1], o, providers=["CPUExecutionProvider"])
s.run(None, {i.name: np.ones([d if isinstance(d, int) else 1 for d in i.shape], np.float32) for i in s.get_inputs()})
print((time.perf_counter() - begin) * 1e3)
"""


def tenon(program, model, cache):
    begin = time.perf_counter()
    subprocess.run([program, "run", "-q", "--threads", "1", model], env=dict(os.environ, TENON_CACHE_DIR=cache), check=True,
                   stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begin) * 1e3


def kept(cache):
    """Whether the process that writes the program has ended."""
    names = os.listdir(cache)
    return any(n.endswith(".program") for n in names) and not any(n.startswith("tenon-") for n in names)


def one(program, model, rounds):
    times = {"first": [], "second": [], "ONNX Runtime": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            times["first"].append(tenon(program, model, cache))
            for _ in range(200):
                if kept(cache):
                    break
                time.sleep(0.05)
            time.sleep(0.2)
            times["second"].append(tenon(program, model, cache))
        times["ONNX Runtime"].append(float(subprocess.run([sys.executable, "-c", RIVAL, model], check=True, capture_output=True).stdout))
    middle = {k: statistics.median(v) for k, v in times.items()}
    print(f"{os.path.basename(model).removesuffix('.onnx'):14}", "  ".join(f"{k} {middle[k]:.1f} / {min(v):.1f}" for k, v in times.items()),
          f" second to rival {middle['second'] / middle['ONNX Runtime']:.2f}, {min(times['second']) / min(times['ONNX Runtime']):.2f}", flush=True)


for path in sys.argv[3:]:
    one(sys.argv[1], path, int(sys.argv[2]))
