"""int8_models.py OUT [FILE.onnx...]: models of torchvision and the transformers library with random weights, quantised to 8 bits by ONNX
Runtime's static quantiser (QDQ form, weights by channel): OUT/resnet50.int8.onnx, mobilenet_v2.int8.onnx, minilm.int8.onnx. With files,
these instead (of images: those of light_models.py, say), in operator set 13 at least; then neither library is needed.

Activations are u8, weights i8: what x86 multiplies four at a time. Ranges are those of three random inputs."""
import os
import sys
import tempfile

import numpy as np
import onnx
import onnx.version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

out, *files = sys.argv[1:]
os.makedirs(out, exist_ok=True)
random = np.random.default_rng(0)

if not files:
    import torch
    import torchvision
    import transformers

    torch.manual_seed(0)

    class Hidden(torch.nn.Module):
        """The states of the last layer, of token numbers alone."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids).last_hidden_state


def warm(model, x):
    """Batch norms get the statistics of what passes through, as after training: signals keep one size."""
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(x())
    return model.eval()


class Samples(CalibrationDataReader):
    def __init__(self, name, make):
        self.left = iter([{name: make()} for _ in range(3)])

    def get_next(self):
        return next(self.left, None)


def image():
    return random.standard_normal((1, 3, 224, 224)).astype(np.float32)


def tokens():
    return random.integers(0, 30000, (1, 128)).astype(np.int64)


def minilm():
    config = transformers.BertConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=12, intermediate_size=1536)
    config._attn_implementation = "eager"
    return Hidden(transformers.BertModel(config, add_pooling_layer=False)).eval()


def images(make):
    return warm(make(weights=None), lambda: torch.randn(4, 3, 224, 224))


def quantise(plain, path, name, sample):
    """The ONNX file `plain`, with an input of that name, as `path`."""
    with tempfile.TemporaryDirectory() as folder:
        ready = os.path.join(folder, "ready.onnx")
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        quantize_static(ready, path, Samples(name, sample), quant_format=QuantFormat.QDQ, per_channel=True,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    print(path, os.path.getsize(path) >> 20, "MiB")


for file in files:
    model = onnx.load(file)
    if model.opset_import[0].version < 13:
        model = onnx.version_converter.convert_version(model, 13)
    weights = {w.name for w in model.graph.initializer}
    first = next(i for i in model.graph.input if i.name not in weights)
    shape = [d.dim_value for d in first.type.tensor_type.shape.dim]
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "plain.onnx")
        onnx.save(model, plain)
        quantise(plain, os.path.join(out, os.path.basename(file)[:-5] + ".int8.onnx"), first.name,
                 lambda shape=shape: random.standard_normal(shape).astype(np.float32))

for name, model, sample in () if files else (("resnet50", lambda: images(torchvision.models.resnet50), image),
                                             ("mobilenet_v2", lambda: images(torchvision.models.mobilenet_v2), image),
                                             ("minilm", minilm, tokens)):
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "plain.onnx")
        torch.onnx.export(model(), (torch.from_numpy(sample()),), plain, input_names=["x"], output_names=["y"], dynamo=False)
        quantise(plain, os.path.join(out, name + ".int8.onnx"), "x", sample)
