#!/usr/bin/env python3
"""Trains a next-token layer ("multi-token prediction", DeepSeek-V3, arXiv:2412.19437) for one of the built-in models.

  tools/train/mtp.py train --target models/story-7m --out models/story-7m-mtp
      samples stories from the target, trains the layer on them with the target frozen, writes it as DeepSeek-V3 has it
      in its checkpoint, acceptance.json (on prompts that training never saw) and expected.json
  tools/train/mtp.py golden --target tests/data/goldens/llama --out tests/data/goldens/llama-mtp
      writes a small layer of random weights with inputs and logits, for the test of the arithmetic

Row i normalises the embedding of token i + 1 and the target's hidden state of token i after the final norm, and
concatenates them through `eh_proj`. Then follow one layer of the target's kind, a norm, and the target's own output
head. It predicts token i + 2. After the last known token it uses its own output; training does the same for
`--steps` tokens.
"""

import argparse
import os

import torch
from safetensors.torch import save_file
from torch import nn

from common import (Attention, ChainHead, Mlp, Norm, causal, folder_options, linear, load_target, numbers_of, round_to,
                    train, train_options, write_json, written_config)


class SharedHead(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])


class Layer(ChainHead):
    """Its parameters have the names of DeepSeek-V3's checkpoint, after the prefix
    `model.layers.N.`."""

    def __init__(self, c, head):
        super().__init__(c, torch.arange(c["vocab_size"]))
        size, epsilon = c["hidden_size"], c["rms_norm_eps"]
        self.enorm, self.hnorm = Norm(size, epsilon), Norm(size, epsilon)
        self.eh_proj = linear(2 * size, size)
        self.input_layernorm, self.post_attention_layernorm = Norm(size, epsilon), Norm(size, epsilon)
        self.self_attn, self.mlp = Attention(c, size), Mlp(c)
        self.shared_head = SharedHead(c)
        self.register_buffer("head", head.detach().clone(), persistent=False)

    def forward(self, embedded, hidden, step, cache, allowed):
        hidden = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1))
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), step, cache, allowed)
        hidden = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return hidden, self.shared_head.norm(hidden) @ self.head.T

    def save(self, folder, dtype):
        os.makedirs(folder, exist_ok=True)
        prefix = f"model.layers.{self.config['num_hidden_layers']}."
        tensors = {prefix + name: tensor for name, tensor in self.tensors(dtype).items()}
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        write_json(os.path.join(folder, "config.json"), written_config(self.config))


def config_for(target, intermediate):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "intermediate_size": intermediate, "num_hidden_layers": target.config.num_hidden_layers,
        "num_nextn_predict_layers": 1, "tie_word_embeddings": False, **numbers_of(target),
    }


def make_head(target, texts, args):
    return Layer(config_for(target, args.intermediate), target.lm_head.weight), {}


@torch.no_grad()
def golden(args):
    torch.manual_seed(13)
    target = load_target(args.target, "cpu")
    layer = Layer(config_for(target, 64), target.lm_head.weight)
    for name, parameter in layer.named_parameters():
        if "norm" in name:
            parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
    round_to(layer, torch.bfloat16)
    layer.save(args.out, torch.bfloat16)
    rows, steps = 21, 3
    tokens = torch.randint(target.config.vocab_size, (1, rows + steps + 1))
    features = torch.randn(1, rows, target.config.hidden_size)  # before the final norm, as in the
                                                                # server
    allowed = causal(rows, torch.zeros(1, dtype=torch.long), "cpu")
    # The last row is run alone, so that its logits are those that drafting sees.
    embedding = target.get_input_embeddings()
    hidden, cache, logits = target.model.norm(features), [], []
    for step in range(steps):
        hidden, out = layer(embedding(tokens[:, 1 + step:1 + step + rows]), hidden, step, cache, allowed)
        logits.append(out[0] if step == 0 else out[0, -1:])
    save_file({"tokens": tokens[0].contiguous(), "features": features[0].contiguous(),
               "logits": torch.cat(logits).contiguous()}, os.path.join(args.out, "expected.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    t = commands.add_parser("train")
    train_options(t)
    t.add_argument("--intermediate", type=int, default=512)
    folder_options(commands.add_parser("golden"))
    args = parser.parse_args()
    if args.command == "golden":
        return golden(args)
    return train(args, make_head, lambda target: [target.config.num_hidden_layers])


if __name__ == "__main__":
    main()
