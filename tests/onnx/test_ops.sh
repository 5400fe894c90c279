#!/bin/bash
# test_ops.sh - docs/onnx.md lists the ops that onnx/ops.def has, each once and no other.
set -u
cd "$(dirname "$0")/../.." || exit 1
python3 - <<'P'
import re
text = re.sub(r"/\*.*?\*/", "", open("onnx/ops.def").read(), flags=re.S)
rows = {("ai.onnx", m[2]) for m in re.finditer(r"^(UNARY|BINARY|OP)\((\w+),", text, re.M)}
rows |= {(m[1], m[2]) for m in re.finditer(r'^OP_IN\("([\w.]+)", (\w+),', text, re.M)}
listed = re.search(r"## Ops\n(.*?)\n## ", open("docs/onnx.md").read(), re.S)[1]
docs = set()
for domain, count, names in re.findall(r"^- `([\w.]+)` \((\d+)\): (.*?)(?=\n- |\n\n)", listed, re.M | re.S):
    assert int(count) == len(names.split()), (domain, count, len(names.split()))
    docs |= {(domain, name) for name in names.split()}
assert docs == rows, (sorted(docs - rows), sorted(rows - docs))
print(f"count: {len(rows)} ops of ONNX in the table and in docs/onnx.md")
P
