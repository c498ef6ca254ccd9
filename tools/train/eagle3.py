#!/usr/bin/env python3
"""Trains an EAGLE-3 head (Li et al., arXiv:2503.01840) for one of the built-in models, from nothing but the model.

  tools/train/eagle3.py train --target models/story-7m --out models/story-7m-eagle3
      samples stories from the target, trains the head on them, writes the checkpoint in the published layout,
      acceptance.json (on prompts that training never saw) and expected.json (drafts that a test expects of the server)
  tools/train/eagle3.py golden --target tests/data/goldens/llama --out tests/data/goldens/llama-eagle3
      writes a small head of random weights with inputs and logits, for the test of the arithmetic

Needs PyTorch, transformers, tokenizers and safetensors; minutes on one GPU.

Row i of the head reads the embedding of token i + 1 and the target's residual streams in front of three layers at
token i, and predicts token i + 2. After the last known token it uses its own output in place of the target's
features. Training does the same for `--steps` tokens ("training-time test"), so that training and drafting match.
"""

import argparse
import os

import torch
from safetensors.torch import save_file
from torch import nn

from common import (Attention, ChainHead, Mlp, Norm, causal, choose_vocabulary, folder_options, linear, load_target,
                    numbers_of, round_to, train, train_options, write_json, written_config)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        size, epsilon = c["hidden_size"], c["rms_norm_eps"]
        self.self_attn, self.mlp = Attention(c, 2 * size), Mlp(c)
        self.input_layernorm, self.hidden_norm = Norm(size, epsilon), Norm(size, epsilon)
        self.post_attention_layernorm = Norm(size, epsilon)

    def forward(self, embedded, hidden, step, cache, allowed):
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), -1)
        hidden = hidden + self.self_attn(x, step, cache, allowed)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Head(ChainHead):
    """Its parameters have the names of a published checkpoint."""

    def __init__(self, c, kept):
        super().__init__(c, kept)
        self.fc = linear(len(c["eagle_aux_hidden_state_layer_ids"]) * c["target_hidden_size"], c["hidden_size"])
        self.midlayer = Layer(c)
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = linear(c["hidden_size"], c["draft_vocab_size"])

    def begin(self, features):
        return self.fc(features)

    def forward(self, embedded, hidden, step, cache, allowed):
        hidden = self.midlayer(embedded, hidden, step, cache, allowed)
        return hidden, self.lm_head(self.norm(hidden))

    def save(self, folder, dtype):
        os.makedirs(folder, exist_ok=True)
        tensors = self.tensors(dtype)
        kept = self.kept.cpu()
        known = torch.zeros(self.config["vocab_size"], dtype=torch.bool)
        known[kept] = True
        tensors["d2t"] = kept - torch.arange(len(kept))
        tensors["t2d"] = known
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        write_json(os.path.join(folder, "config.json"), written_config(self.config))


def config_for(target, layers, intermediate, kept, dtype):
    numbers = numbers_of(target)
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "dtype": dtype,
        "target_hidden_size": numbers["hidden_size"], "intermediate_size": intermediate, "num_hidden_layers": 1,
        "draft_vocab_size": kept, "eagle_aux_hidden_state_layer_ids": layers, "tie_word_embeddings": False, **numbers,
    }


def layers_of(args):
    return [int(i) for i in args.layers.split(",")]


def make_head(target, texts, args):
    kept, covered = choose_vocabulary(texts, args.draft_vocabulary, target.config.vocab_size)
    config = config_for(target, layers_of(args), args.intermediate, len(kept), "bfloat16")
    return Head(config, kept), {"draft_vocabulary_covers": round(covered, 5)}


# ---- golden files of random weights ----


@torch.no_grad()
def golden(args):
    torch.manual_seed(11)
    target = load_target(args.target, "cpu")
    layers = [0, 1, 1]
    vocabulary = target.config.vocab_size
    # The lowest ids are included because tests have prompts of them.
    kept = torch.cat((torch.arange(40), 40 + torch.randperm(vocabulary - 40)[:88])).sort().values
    head = Head(config_for(target, layers, 64, len(kept), "bfloat16"), kept)
    for name, parameter in head.named_parameters():
        if "norm" in name:
            parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
    round_to(head, torch.bfloat16)
    head.save(args.out, torch.bfloat16)
    rows, steps = 21, 3
    tokens = torch.randint(vocabulary, (1, rows + steps + 1))
    features = torch.randn(1, rows, len(layers) * target.config.hidden_size)
    allowed = causal(rows, torch.zeros(1, dtype=torch.long), "cpu")
    # The last row is run alone, so that its logits are those that drafting sees.
    embedding = target.get_input_embeddings()
    hidden, cache, logits = head.begin(features), [], []
    for step in range(steps):
        hidden, out = head(embedding(tokens[:, 1 + step:1 + step + rows]), hidden, step, cache, allowed)
        logits.append(out[0] if step == 0 else out[0, -1:])
    save_file({"tokens": tokens[0].contiguous(), "features": features[0].contiguous(),
               "logits": torch.cat(logits).contiguous(), "hidden": hidden[0, -1:].contiguous()},
              os.path.join(args.out, "expected.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    t = commands.add_parser("train")
    train_options(t)
    t.add_argument("--layers", default="2,4,5", help="residual streams in front of these layers")
    t.add_argument("--intermediate", type=int, default=512)
    t.add_argument("--draft-vocabulary", type=int, default=1024)
    folder_options(commands.add_parser("golden"))
    args = parser.parse_args()
    if args.command == "golden":
        return golden(args)
    return train(args, make_head, lambda target: layers_of(args))


if __name__ == "__main__":
    main()
