"""int8_models.py OUT: models of torchvision and the transformers library with random weights, quantised to 8 bits by ONNX Runtime's
static quantiser (QDQ form, weights by channel): OUT/resnet50.int8.onnx, mobilenet_v2.int8.onnx, minilm.int8.onnx.

Activations are u8, weights i8: what x86 multiplies four at a time. Ranges are those of three random inputs."""
import os
import sys
import tempfile

import numpy as np
import torch
import torchvision
import transformers
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

out = sys.argv[1]
os.makedirs(out, exist_ok=True)
random = np.random.default_rng(0)
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


for name, model, sample in (("resnet50", lambda: images(torchvision.models.resnet50), image),
                            ("mobilenet_v2", lambda: images(torchvision.models.mobilenet_v2), image), ("minilm", minilm, tokens)):
    with tempfile.TemporaryDirectory() as folder:
        plain, ready = os.path.join(folder, "plain.onnx"), os.path.join(folder, "ready.onnx")
        torch.onnx.export(model(), (torch.from_numpy(sample()),), plain, input_names=["x"], output_names=["y"], dynamo=False)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
        path = os.path.join(out, name + ".int8.onnx")
        quantize_static(ready, path, Samples("x", sample), quant_format=QuantFormat.QDQ, per_channel=True,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
        print(path, os.path.getsize(path) >> 20, "MiB")
