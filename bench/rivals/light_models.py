"""light_models.py OUT: the light models of the onnx package (AlexNet, DenseNet, Inception, ResNet-50, ShuffleNet, SqueezeNet, VGG-19,
ZFNet) with random weights, as files of their own: OUT/resnet50.onnx ...

Light models have one number everywhere in each weight. Here weights are normal with the variance that keeps signals of one size, batch
norms near the identity. A softmax at the end is left out: of large numbers it shows only which is the largest."""
import glob
import os
import sys

import numpy as np
import onnx
from onnx import numpy_helper

out = sys.argv[1]
os.makedirs(out, exist_ok=True)
random = np.random.default_rng(0)


def weight(shape, op, operand):
    if op == "BatchNormalization":
        return np.abs(random.standard_normal(shape)) * 0.1 + 0.9 if operand in (1, 4) else random.standard_normal(shape) * 0.1
    if len(shape) >= 2:
        return random.standard_normal(shape) * np.sqrt(2 / max(1, np.prod(shape[1:])))
    return random.standard_normal(shape) * 0.1


for file in sorted(glob.glob(os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/light/light_*.onnx"))):
    model = onnx.load(file)
    graph = model.graph
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    filled = {n.output[0]: tuple(shapes[n.input[0]]) for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in shapes}
    nodes = [n for n in graph.node if n.output[0] not in filled]
    if nodes[-1].op_type == "Softmax":
        graph.output[0].name = nodes.pop().input[0]
        graph.output[0].type.tensor_type.ClearField("shape")
    use = {name: (n.op_type, k) for n in nodes for k, name in enumerate(n.input)}
    for name, shape in filled.items():
        graph.initializer.append(numpy_helper.from_array(weight(shape, *use.get(name, ("", 0))).astype(np.float32), name))
    kept = [i for i in graph.initializer if i.name in use]
    inputs = [i for i in graph.input if i.name in use and i.name not in {k.name for k in kept}]
    for field, values in ((graph.node, nodes), (graph.initializer, kept), (graph.input, inputs)):
        values = [type(v).FromString(v.SerializeToString()) for v in values]
        del field[:]
        field.extend(values)
    model.ir_version = max(model.ir_version, 4)
    path = os.path.join(out, os.path.basename(file)[len("light_"):])
    onnx.save(model, path)
    print(path, os.path.getsize(path) >> 20, "MiB")
