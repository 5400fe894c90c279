"""library_models.py OUT [NAME...]: models of torchvision and the transformers library with random weights, at small sizes, as ONNX files
with an input and the output that ONNX Runtime gives: OUT/bert.onnx, bert.in_0.npy .., bert.out.npy. Models that cannot be exported are named.

library_models.py OUT [NAME...] --tenon PROGRAM: instead, runs those files with that `tenon` and prints how far its first output is from
ONNX Runtime's, as a part of the largest element."""
import glob
import os
import subprocess
import sys

import numpy as np

tenon = sys.argv[sys.argv.index("--tenon") + 1] if "--tenon" in sys.argv else None
out, *wanted = [a for a in sys.argv[1:] if a not in ("--tenon", tenon)]


def compare():
    for file in sorted(glob.glob(os.path.join(out, "*.onnx"))):
        base, name = file[:-5], os.path.basename(file)[:-5]
        if (wanted and name not in wanted) or not os.path.exists(base + ".out.npy"):
            continue
        given = [f"--input={os.path.basename(f).split('.')[-2]}=@{f}" for f in sorted(glob.glob(glob.escape(base) + ".in_*.npy"))]
        y = base + ".tenon.npy"
        run = subprocess.run([tenon, "run", file, *given, f"--output=y=@{y}"], capture_output=True, text=True)
        if run.returncode:
            print(f"{name:24} REFUSED {run.stderr.strip()[:400]}")
            continue
        want, got = np.load(base + ".out.npy").astype(np.float64), np.load(y)
        print(f"{name:24} {np.abs(want - got).max() / max(np.abs(want).max(), 1e-30):.2e}", flush=True)


if tenon:
    sys.exit(compare())

import onnxruntime
import torch
import torchvision
import transformers as tf

os.makedirs(out, exist_ok=True)
onnxruntime.set_default_logger_severity(3)
torch.manual_seed(0)
vision = torchvision.models


class Only(torch.nn.Module):
    """A model of positional inputs and one output, which pick chooses."""

    def __init__(self, model, pick, names=(), mask=None):
        super().__init__()
        self.model, self.pick, self.names, self.mask = model, pick, names, mask

    def forward(self, *x):
        more = {self.mask: torch.ones_like(x[-1])} if self.mask else {}  # given: how it is found otherwise is not exported
        return self.pick(self.model(**dict(zip(self.names, x)), **more) if self.names else self.model(*x))


def image(size=64):
    return torch.randn(1, 3, size, size)


def tokens(n=16):
    return torch.randint(0, 100, (1, n))


def net(name, size=64):
    return lambda: (vision.get_model(name, weights=None), (image(size),))


def segmentation(name):
    make = getattr(vision.segmentation, name)
    return lambda: (Only(make(weights=None, weights_backbone=None), lambda y: y["out"]), (image(65),))


class Heads(torch.nn.Module):
    """Features and the heads of a detector: scores of all anchors, before boxes are chosen."""

    def __init__(self, model):
        super().__init__()
        self.backbone, self.head = model.backbone, model.head

    def forward(self, x):
        return self.head(list(self.backbone(x).values()))["cls_logits"]


def detector(name):
    make = getattr(vision.detection, name)
    return lambda: (Heads(make(weights=None, weights_backbone=None)), (image(128),))


def text(model, config, pick, names=("input_ids",), inputs=None, mask=None, **sizes):
    def make():
        c = config(**sizes)
        c._attn_implementation = "eager"
        c.use_cache = False
        return Only(model(c), pick, names, mask), inputs() if inputs else (tokens(),)
    return make


bert = dict(vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
llama = dict(**bert, num_key_value_heads=2)
t5 = dict(vocab_size=100, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
whisper = dict(vocab_size=100, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
               encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=50, num_mel_bins=16, pad_token_id=0, bos_token_id=1,
               eos_token_id=2, decoder_start_token_id=1)
small = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8)
last, logits = lambda y: y.last_hidden_state, lambda y: y.logits

models = {n: net(n) for n in ("resnet18", "resnext50_32x4d", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0",
                              "squeezenet1_1", "densenet121", "mnasnet0_5", "regnet_y_400mf", "convnext_tiny", "swin_t", "vgg11")}
models["googlenet"] = lambda: (vision.googlenet(weights=None, init_weights=True, aux_logits=False), (image(64),))
models.update({n: segmentation(n) for n in ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")})
models.update({n: detector(n) for n in ("retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large")})
models.update(
    bert=text(tf.BertModel, tf.BertConfig, last, **bert),
    distilbert=text(tf.DistilBertModel, tf.DistilBertConfig, last, vocab_size=100, dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    gpt2=text(tf.GPT2LMHeadModel, tf.GPT2Config, logits, mask="attention_mask", vocab_size=100, n_embd=64, n_layer=2, n_head=4),
    t5=text(tf.T5ForConditionalGeneration, tf.T5Config, logits, ("input_ids", "decoder_input_ids"), lambda: (tokens(), tokens(8)), **t5),
    vit=text(tf.ViTModel, tf.ViTConfig, last, ("pixel_values",), lambda: (image(32),), **small),
    clip_vision=text(tf.CLIPVisionModel, tf.CLIPVisionConfig, last, ("pixel_values",), lambda: (image(32),), **small),
    clip_text=text(tf.CLIPTextModel, tf.CLIPTextConfig, last, **bert),
    whisper=text(tf.WhisperForConditionalGeneration, tf.WhisperConfig, logits, ("input_features", "decoder_input_ids"),
                 lambda: (torch.randn(1, 16, 100), tokens(8)), "decoder_attention_mask", **whisper),
    llama=text(tf.LlamaForCausalLM, tf.LlamaConfig, logits, mask="attention_mask", **llama),
    qwen2=text(tf.Qwen2ForCausalLM, tf.Qwen2Config, logits, mask="attention_mask", **llama))

for name, make in models.items():
    if wanted and name not in wanted:
        continue
    try:
        torch.manual_seed(0)
        model, inputs = make()
        names, base = [f"in_{i}" for i in range(len(inputs))], os.path.join(out, name)
        torch.onnx.export(model.eval(), inputs, base + ".onnx", input_names=names, output_names=["y"], opset_version=18, dynamo=False)
        feeds = {n: x.numpy() for n, x in zip(names, inputs)}
        y = onnxruntime.InferenceSession(base + ".onnx", providers=["CPUExecutionProvider"]).run(["y"], feeds)[0]
        for n, x in feeds.items():
            np.save(f"{base}.{n}.npy", x)
        np.save(base + ".out.npy", y)
        print(base + ".onnx", os.path.getsize(base + ".onnx") >> 10, "KiB", flush=True)
    except Exception as e:  # whatever an exporter refuses with
        print(f"{name}: {type(e).__name__}: {str(e).splitlines()[0][:300] if str(e) else ''}", flush=True)
