"""Models of torchvision and the transformers library, from random weights, through torch.compile(backend="tenon"), against eager.

usage: python models.py [NAME...]    needs torch, torchvision, transformers; not one of the tests, for it takes minutes
Prints for each the largest difference (of the largest result), the time of the first call, the best of ten calls of eager and of
Tenon, and what ran in PyTorch.
"""

import logging
import sys
import time
import warnings

import torch
import torchvision.models
import transformers

import tenon.torch

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
WORDS = dict(SMALL, vocab_size=100)


class Part(torch.nn.Module):
    """One of the results of a model of the transformers library."""

    def __init__(self, model, key):
        super().__init__()
        self.model, self.key = model.eval(), key

    def forward(self, x):
        return getattr(self.model(x), self.key)


def vision(name, size=64, **options):
    return lambda: (getattr(torchvision.models, name)(weights=None, **options).eval(), torch.randn(1, 3, size, size))


def words(model, config, key="last_hidden_state", **options):
    def make():
        cls, cfg = getattr(transformers, model), getattr(transformers, config)
        return Part(cls(cfg(**options)), key), torch.randint(3, 100, (2, 12))
    return make


CASES = {name: vision(name) for name in (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small",
    "regnet_y_400mf", "resnet18", "resnet50", "shufflenet_v2_x1_0", "squeezenet1_1", "swin_t", "vgg11")}
CASES["vit_b_32"] = vision("vit_b_32", image_size=64)
CASES |= {
    "bert": words("BertModel", "BertConfig", **WORDS),
    "roberta": words("RobertaModel", "RobertaConfig", max_position_embeddings=64, **WORDS),
    "distilbert": words("DistilBertModel", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=100),
    "gpt2": words("GPT2LMHeadModel", "GPT2Config", "logits", n_embd=32, n_layer=2, n_head=4, vocab_size=100, use_cache=False),
    "llama": words("LlamaForCausalLM", "LlamaConfig", "logits", num_key_value_heads=2, use_cache=False, **WORDS),
    "qwen2": words("Qwen2ForCausalLM", "Qwen2Config", "logits", num_key_value_heads=2, use_cache=False, **WORDS),
    "t5 encoder": words("T5EncoderModel", "T5Config", d_model=32, d_ff=64, num_layers=2, num_heads=4, d_kv=8, vocab_size=100),
    "vit": lambda: (Part(transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **SMALL)), "last_hidden_state"),
                    torch.randn(1, 3, 32, 32)),
}


class Names(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = set()

    def emit(self, record):
        self.texts.add(record.getMessage().split(" runs")[0])


def best(fn, x):
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        fn(x)
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def main(names):
    warnings.filterwarnings("ignore")
    told = Names()
    logging.getLogger("tenon.torch").addHandler(told)
    logging.getLogger("tenon.torch").setLevel(logging.DEBUG)
    logging.getLogger("tenon.torch").propagate = False
    worst = 0.0
    for name in names or CASES:
        torch._dynamo.reset()
        torch.manual_seed(0)
        told.texts.clear()
        model, x = CASES[name]()
        compiled = torch.compile(model, backend="tenon")
        with torch.no_grad():
            want = model(x)
            begin = time.perf_counter()
            got = compiled(x)
            first = time.perf_counter() - begin
            error = float((got - want).abs().max() / want.abs().max())
            worst = max(worst, error)
            print(f"{name:20} error {error:.1e}  first {first:6.2f} s  eager {best(model, x):8.2f} ms  tenon {best(compiled, x):8.2f} ms  "
                  f"{', '.join(sorted(told.texts)) or 'all compiled'}", flush=True)
    return worst > 1e-4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
