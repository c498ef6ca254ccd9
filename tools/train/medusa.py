#!/usr/bin/env python3
"""Trains Medusa heads (Cai et al., arXiv:2401.10774) for one of the built-in models, from nothing but the model.

  tools/train/medusa.py train --target models/story-7m --out models/story-7m-medusa
      samples stories from the target, trains the heads on them with the target frozen ("Medusa-1"), writes the
      checkpoint in the published layout, acceptance.json (on prompts that training never saw) and expected.json
  tools/train/medusa.py golden --target tests/data/goldens/llama --out tests/data/goldens/llama-medusa
      writes small heads of random weights with inputs and logits, for the test of the arithmetic

Head i reads the input of the target's own output head at token t (the hidden state after the final norm) and
predicts token t + 2 + i. Its tensors are `i.j.linear.*` of its j-th residual block and `i.N.weight` of its output
matrix, which covers a part of the vocabulary (`token_map`, as vLLM reads it).
"""

import argparse
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from common import (DraftHead, choose_vocabulary, folder_options, load_target, look_at, round_to, train, train_options,
                    write_json)


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return x + F.silu(self.linear(x))


class Heads(DraftHead):
    """Its parameters have the names of a published checkpoint, after the prefix `heads.`."""

    def __init__(self, config, kept, target):
        super().__init__(config, kept, config["medusa_num_heads"])
        size = config["hidden_size"]
        self.heads = nn.ModuleList()
        for _ in range(self.places):
            head = nn.Linear(size, len(kept), bias=False)
            with torch.no_grad():
                head.weight.copy_(target.lm_head.weight[kept.to(target.lm_head.weight.device)])
            self.heads.append(nn.Sequential(*[Block(size) for _ in range(config["medusa_num_layers"])], head))

    def forward(self, hidden):
        return [head(hidden) for head in self.heads]

    def unroll(self, embedding, tokens, features, steps, allowed):
        return self(features)[:steps]

    @torch.no_grad()
    def drafts_after(self, target, tokens, layers, count):
        features, _ = look_at(target, torch.tensor([tokens], device=target.device), layers)
        best = [logits[0].topk(2) for logits in self(features[:, len(tokens) - 2])[:count]]
        margin = min([float(b.values[0] - b.values[1]) for b in best], default=math.inf)
        return [int(self.kept[b.indices[0]]) for b in best], margin

    def save(self, folder, dtype):
        os.makedirs(folder, exist_ok=True)
        tensors = {name.removeprefix("heads."): tensor for name, tensor in self.tensors(dtype).items()}
        if len(self.kept) < self.config["vocab_size"]:
            tensors["token_map"] = self.kept.cpu()
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        write_json(os.path.join(folder, "config.json"), self.config)


def config_for(target, args, kept):
    return {
        "architectures": ["MedusaModel"], "model_type": "medusa", "dtype": "bfloat16",
        "base_model_name_or_path": os.path.basename(os.path.normpath(args.target)), "medusa_num_heads": args.heads,
        "medusa_num_layers": args.blocks, "hidden_size": target.config.hidden_size,
        "vocab_size": target.config.vocab_size, "truncated_vocab_size": kept,
    }


def make_head(target, texts, args):
    args.steps = args.heads
    kept, covered = choose_vocabulary(texts, args.draft_vocabulary, target.config.vocab_size)
    return Heads(config_for(target, args, len(kept)), kept, target), {"draft_vocabulary_covers": round(covered, 5)}


@torch.no_grad()
def golden(args):
    torch.manual_seed(12)
    target = load_target(args.target, "cpu")
    vocabulary = target.config.vocab_size
    # The lowest ids are included because tests have prompts of them.
    kept = torch.cat((torch.arange(40), 40 + torch.randperm(vocabulary - 40)[:88])).sort().values
    heads = Heads(config_for(target, args, len(kept)), kept, target)
    for parameter in heads.parameters():
        parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]))
    round_to(heads, torch.bfloat16)
    heads.save(args.out, torch.bfloat16)
    features = torch.randn(7, target.config.hidden_size)  # before the final norm, as in the server
    logits = heads(target.model.norm(features))
    save_file({"features": features.contiguous(), "logits": torch.stack(logits).contiguous()},
              os.path.join(args.out, "expected.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    t = commands.add_parser("train")
    train_options(t)
    t.add_argument("--draft-vocabulary", type=int, default=1024)
    t.set_defaults(blocks=1)
    g = commands.add_parser("golden")
    folder_options(g)
    g.set_defaults(blocks=2)
    for each, heads in ((t, 4), (g, 3)):
        each.add_argument("--heads", type=int, default=heads)
    args = parser.parse_args()
    if args.command == "golden":
        return golden(args)
    return train(args, make_head, lambda target: [target.config.num_hidden_layers])


if __name__ == "__main__":
    main()
