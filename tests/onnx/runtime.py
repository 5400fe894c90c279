"""runtime.py TENON DIR MODEL...: builtin models as ONNX, through onnx's checker and ONNX Runtime, beside `tenon run`.

Every output of ONNX Runtime must be that of `tenon run MODEL` (those that it has) and of `tenon run FILE` (all of them) for the same
random inputs, within 1e-4 of the largest element; of what a training step updates 99 % of the elements must be, since Adam divides a
gradient that is nothing but rounding by its own size. The biases of attention's keys have no other gradient (a number added to a row of
scores leaves its softmax as it is): theirs may be off by 5 % of the largest."""
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime

tenon, folder, models = sys.argv[1], sys.argv[2], sys.argv[3:]
onnxruntime.set_default_logger_severity(3)
types = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def run(graph, feeds, names):
    command = [tenon, "run", "-q", "-t", "1", graph]
    for i, (name, value) in enumerate(feeds.items()):
        np.save(f"{folder}/in{i}.npy", value)
        command += ["--input", f"{name}=@{folder}/in{i}.npy"]
    for i, name in enumerate(names):
        command += ["--output", f"{name}=@{folder}/out{i}.npy"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return {name: np.load(f"{folder}/out{i}.npy") for i, name in enumerate(names)}


nodes = checked = 0
models = [m for m in models if not m.startswith("@gpt2-train")]  # ONNX Runtime has no Expand of bf16
for model in models:
    for form in ([], ["--training"]) if "train" in model else ([],):
        file = f"{folder}/model.onnx"
        subprocess.run([tenon, "emit", model, "--target=onnx", "-o", file, *form], check=True)
        loaded = onnx.load(file)
        onnx.checker.check_model(loaded, full_check=True)
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        random = np.random.default_rng(1)
        weights = {w.name for w in loaded.graph.initializer}
        feeds = {}
        for x in session.get_inputs():
            if x.name in weights:
                continue
            kind = types[x.type]
            feeds[x.name] = (random.standard_normal(x.shape) if kind in (np.float32, np.float64) else random.integers(0, 9, x.shape)).astype(kind)
        names = [y.name for y in session.get_outputs()]
        want = dict(zip(names, session.run(names, feeds)))
        known = [n for n in names if not n.endswith(".next")]
        for graph, some in ((model, known), (file, names)):
            for name, value in run(graph, feeds, some).items():
                assert value.shape == want[name].shape and value.dtype == want[name].dtype, (model, graph, name)
                scale = np.abs(want[name]).max(initial=1e-30)
                room = np.full(value.shape, 1e-4)
                if name.endswith(".attn.c_attn.bias.next"):
                    room[len(value) // 3 : 2 * len(value) // 3] = 0.05
                far = np.abs(value - want[name]) > room * scale
                assert far.mean() <= (0.01 if name.endswith(".next") else 0) if far.size else True, (model, graph, name, far.mean())
                checked += 1
        nodes += len(loaded.graph.node)
print(f"count: {len(models)} builtin models as ONNX ({nodes} nodes) pass onnx's checker {onnx.__version__}, {checked} outputs are those of "
      f"ONNX Runtime {onnxruntime.__version__}")
