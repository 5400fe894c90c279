"""Trains a small convolutional network on the UCI handwritten digits, saves it, and loads it into another graph.

usage: python digits.py [data/digits.csv] [epochs]    (scripts/fetch-data makes the file: 1797 rows of 64 pixels 0..16 and a label)
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tenon
from tenon import nn, optim

TEST, BATCH = 360, 32


def network(x):  # f32[N,8,8,1] -> f32[N,10]: one score a digit
    x = nn.conv2d(x, 16, 3, "conv1", padding=1).relu()
    x = nn.conv2d(x, 32, 3, "conv2", padding=1).relu()
    x = nn.max_pool(x, 2)
    x = nn.linear(x.reshape(x.shape[0], -1), 64, "fc1").relu()
    return nn.linear(x, 10, "fc2")


def main(path="data/digits.csv", epochs="30"):
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(1).permutation(len(table))]
    images, labels = table[:, :64].reshape(-1, 8, 8, 1) / 16, table[:, 64].astype(np.int32)
    steps = (len(table) - TEST) // BATCH

    # Loss, gradients and Adam are one graph; an epoch is one call.
    g = tenon.Graph("digits_train")
    loss = nn.cross_entropy(network(g.input("images", (BATCH, 8, 8, 1))), g.input("labels", (BATCH,), "i32"))
    optim.adam(loss, 2e-3)
    g.output(loss, "loss")
    train = g.compile(mode="loop").session()
    rings = {"images": images[: steps * BATCH].reshape(steps, BATCH, 8, 8, 1), "labels": labels[: steps * BATCH].reshape(steps, BATCH)}
    begin = time.perf_counter()
    for epoch in range(int(epochs)):
        losses = train.run_n(steps, rings, trace=["loss"])["loss"]
        print(f"epoch {epoch + 1:3} loss {losses.mean():.4f}", end="\r", file=sys.stderr)
    seconds = time.perf_counter() - begin

    with tempfile.TemporaryDirectory() as folder:
        train.save(Path(folder) / "digits.safetensors")
        h = tenon.Graph("digits")
        h.output(network(h.input("images", (TEST, 8, 8, 1))), "scores")
        test = h.compile().session()
        test.load(Path(folder) / "digits.safetensors")
    scores = test(images=images[-TEST:])["scores"]
    accuracy = (scores.argmax(1) == labels[-TEST:]).mean()
    print(f"accuracy {accuracy:.2%} of {TEST} test images, trained in {seconds:.1f} s")
    return accuracy


if __name__ == "__main__":
    main(*sys.argv[1:])
