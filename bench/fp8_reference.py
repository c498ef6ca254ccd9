#!/usr/bin/env python3
"""How often story-7m's most likely token survives FP8, computed in float64.

The quantised values are those of the GPU backend: weights in E4M3 with one scale for each output, activations in E4M3
with one scale for each token. Products are exact to float64, so what differs from the unquantised model is the
format's doing, not a kernel's. Needs numpy and tokenizers. Usage: bench/fp8_reference.py [MODEL_FOLDER] [TEXT]
"""
import json
import pathlib
import re
import struct
import sys

import numpy as np
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent


def load(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    weights = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            sys.exit(f"{path}: {name} is {entry['dtype']}; only BF16 is read")
        begin, end = (8 + size + at for at in entry["data_offsets"])
        bits = np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16
        weights[name] = bits.view(np.float32).astype(np.float64).reshape(entry["shape"])
    return weights


def e4m3(x):
    """Rounds the last dimension's vectors to E4M3, each with its own scale."""
    scale = np.abs(x).max(-1, keepdims=True) / 448
    scale[scale == 0] = 1
    exponent = np.floor(np.log2(np.maximum(np.abs(x / scale), 2.0**-6)))
    step = 2.0 ** (exponent - 3)
    return np.clip(np.rint(x / scale / step) * step, -448, 448) * scale


def forward(tokens, w, config, rounded):
    """Logits of each position, [tokens, vocabulary]; `rounded` is applied to the inputs of linear layers."""
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    count = len(tokens)
    angle = np.arange(count)[:, None] / config["rope_parameters"]["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def rotate(x):
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."

        def linear(y, name):
            return y @ w[at + name + "_proj.weight"].T

        y = rounded(norm(x, w[at + "input_layernorm.weight"]))
        q, k = (rotate(linear(y, f"self_attn.{name}").reshape(count, -1, dim)) for name in "qk")
        v = linear(y, "self_attn.v").reshape(count, -1, dim)
        out = np.zeros((count, heads, dim))
        for head in range(heads):
            shared = head * kv_heads // heads
            scores = q[:, head] @ k[:, shared].T / np.sqrt(dim)
            scores[np.triu_indices(count, 1)] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            out[:, head] = weights / weights.sum(1, keepdims=True) @ v[:, shared]
        x = x + linear(rounded(out.reshape(count, -1)), "self_attn.o")
        y = rounded(norm(x, w[at + "post_attention_layernorm.weight"]))
        gate = linear(y, "mlp.gate")
        x = x + linear(rounded(gate / (1 + np.exp(-gate)) * linear(y, "mlp.up")), "mlp.down")
    return norm(x, w["model.norm.weight"]) @ w["model.embed_tokens.weight"].T


def nll(logits, tokens):
    top = logits.max(1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(logits - top).sum(1))
    return total[:-1] - logits[np.arange(len(tokens) - 1), tokens[1:]]


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "models/story-7m"
    text = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "bench/quality.txt"
    config = json.loads((folder / "config.json").read_text())
    weights = load(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pieces = [tokenizer.encode(p.strip("\n")).ids for p in re.split(r"\n(?=<\|user\|>)", text.read_text()) if p.strip()]
    small = {n: e4m3(w) if n.endswith("_proj.weight") else w for n, w in weights.items()}

    def score(w, rounded):
        each = [(forward(p, w, config, rounded), p) for p in pieces]
        return np.concatenate([l[:-1] for l, _ in each]), np.concatenate([nll(l, p) for l, p in each]).mean()

    plain, plain_nll = score(weights, lambda x: x)
    order = np.sort(plain, 1)
    clear = order[:, -1] - order[:, -2] > 0.5
    print(f"unquantised: mean NLL {plain_nll:.4f} over {len(plain)} positions; {clear.sum()} lead by more than 0.5")
    for name, w, rounded in [("FP8 weights", small, lambda x: x), ("FP8 weights and activations", small, e4m3)]:
        logits, mean = score(w, rounded)
        same = logits.argmax(1) == plain.argmax(1)
        print(f"{name}: mean NLL {mean:.4f}, same most likely token {same.mean():.1%}, "
              f"where it leads by more than 0.5 {same[clear].mean():.1%}")


if __name__ == "__main__":
    main()
