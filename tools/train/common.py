"""Code that the training scripts of draft heads share.

Texts that the target writes, the layers of a head, training on the target's distributions, and
measuring how often draft tokens are accepted. A head is a DraftHead: its input row i is the
target's features of token i. Its draft begins at token i + 2, because token i + 1 is already known.

Needs PyTorch, transformers, tokenizers and safetensors; minutes on one GPU.
"""

import itertools
import json
import math
import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
USER, ASSISTANT, END, BOS, EOS = 3, 4, 5, 1, 2
EVALUATED = 6  # draft tokens per draft whose acceptance is reported


class Norm(nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


def linear(inputs, outputs):
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.6 / math.sqrt(inputs))
    return layer


class Attention(nn.Module):
    def __init__(self, c, inputs):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        hidden = c["hidden_size"]
        self.q_proj = linear(inputs, self.heads * self.dim)
        self.k_proj = linear(inputs, self.kv_heads * self.dim)
        self.v_proj = linear(inputs, self.kv_heads * self.dim)
        self.o_proj = linear(self.heads * self.dim, hidden)
        self.theta = c["rope_theta"]

    def rotate(self, x, positions):
        half = self.dim // 2
        frequencies = self.theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) * 2 / self.dim)
        angles = positions[:, None].float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x, step, cache, allowed):
        """Row i sees the keys of step 0 that `allowed` says, and of every later step only its own
        key."""
        batch, rows, _ = x.shape
        positions = torch.arange(rows, device=x.device) + step
        split = lambda y, heads: y.view(batch, rows, heads, self.dim).transpose(1, 2)
        q = self.rotate(split(self.q_proj(x), self.heads), positions)
        k = self.rotate(split(self.k_proj(x), self.kv_heads), positions)
        share = self.heads // self.kv_heads
        cache.append((k.repeat_interleave(share, 1), split(self.v_proj(x), self.kv_heads).repeat_interleave(share, 1)))
        scale = self.dim ** -0.5
        first = (q @ cache[0][0].transpose(-1, -2)) * scale
        scores = [first.masked_fill(~allowed, float("-inf"))]
        scores += [(q * keys).sum(-1, keepdim=True) * scale for keys, _ in cache[1:]]
        weights = torch.cat(scores, -1).softmax(-1)
        out = weights[..., :rows] @ cache[0][1]
        for i, (_, values) in enumerate(cache[1:]):
            out = out + weights[..., rows + i:rows + i + 1] * values
        return self.o_proj(out.transpose(1, 2).reshape(batch, rows, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.up_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.down_proj = linear(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftHead(nn.Module):
    """`kept`: the target's token ids that its logits cover, ascending. `places`: draft tokens per
    draft."""

    def __init__(self, config, kept, places=EVALUATED):
        super().__init__()
        self.config, self.places = config, places
        self.register_buffer("kept", kept)

    def unroll(self, embedding, tokens, features, steps, allowed):
        """One tensor of logits per place of a draft. Row i of place j is for token i + 2 + j, given
        the true tokens before it."""
        raise NotImplementedError

    def tensors(self, dtype):
        return {name: p.detach().to(dtype).cpu().contiguous() for name, p in self.named_parameters()}


class ChainHead(DraftHead):
    """Drafts token by token: after the last token with target features it uses its own output in
    their place."""

    def begin(self, features):
        return features

    def unroll(self, embedding, tokens, features, steps, allowed):
        rows = tokens.shape[1]
        padded = F.pad(tokens, (0, steps + 1))
        hidden, cache, out = self.begin(features), [], []
        for step in range(steps):
            hidden, logits = self(embedding(padded[:, 1 + step:1 + step + rows]), hidden, step, cache, allowed)
            out.append(logits)
        return out

    @torch.no_grad()
    def drafts_after(self, target, tokens, layers, count):
        """The greedy draft after `tokens`, and the smallest margin between the two best logits
        along it."""
        text = torch.tensor([tokens], device=target.device)
        features, _ = look_at(target, text, layers)
        rows = len(tokens) - 1
        embedding = target.get_input_embeddings()
        allowed = causal(rows, torch.zeros(1, dtype=torch.long, device=text.device), text.device)
        hidden, cache, drafted, margin = self.begin(features[:, :rows]), [], [], math.inf
        following = text[:, 1:]
        for step in range(count):
            # Only the last row matters: in later steps each row sees only itself.
            hidden, logits = self(embedding(following), hidden, step, cache, allowed)
            best = logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            drafted.append(int(self.kept[best.indices[0]]))
            following = torch.full_like(following, drafted[-1])
        return drafted, margin


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")


# ---- the target ----


def load_target(folder, device):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.to(device).eval().requires_grad_(False)


def look_at(target, tokens, layers):
    """The features of every token, and the logits after it."""
    out = target(tokens, output_hidden_states=True, use_cache=False)
    return torch.cat([out.hidden_states[i] for i in layers], -1), out.logits


def gumbel(seed, position, shape, device):
    generator = torch.Generator(device).manual_seed(seed * 100003 + position)
    uniform = torch.rand(shape, generator=generator, device=device).clamp_(1e-10, 1 - 1e-7)
    return -(-uniform.log()).log()


@torch.no_grad()
def sample(target, prompts, length, temperatures, seed):
    """Whole texts [n, length], padded with 0, from prompts of any lengths. Draws argmax of logits +
    T * noise."""
    device, rows, begin = target.device, len(prompts), min(map(len, prompts))
    out = torch.zeros(rows, length, dtype=torch.long)
    given = torch.zeros(rows, length, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        out[row, :len(prompt)] = torch.tensor(prompt)
        given[row, :len(prompt)] = True
    out, given = out.to(device), given.to(device)
    hot = torch.tensor(temperatures, device=device)[:, None]
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    cache, tokens = None, out[:, :begin]
    for position in range(begin, length):
        result = target(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        logits = result.logits[:, -1]
        logits[:, 0] = float("-inf")
        drawn = (logits + hot * gumbel(seed, position, logits.shape, device)).argmax(-1).masked_fill(ended, 0)
        forced = given[:, position]
        out[:, position] = torch.where(forced, out[:, position], drawn)
        ended |= ~forced & ((drawn == END) | (drawn == EOS))
        if position % 16 == 0 and bool(ended.all()):
            break
        tokens = out[:, position:position + 1]
    return out


def held_out_prompts(tokenizer):
    """The benchmark's prompts, which training leaves out."""
    with open(os.path.join(ROOT, "bench/stories.txt"), encoding="utf-8") as file:
        texts = [text.strip() for text in file.read().split("***")]
    return [[BOS, *tokenizer.encode(text, add_special_tokens=False).ids] for text in texts if text]


def training_prompts(tokenizer, count, rng, held_out):
    with open(os.path.join(ROOT, "models/eval.jsonl"), encoding="utf-8") as file:
        things = sorted({key for line in file for key in json.loads(line).get("keys", [])})
    forms = ["Tell me a story about {}."] * 2 + ["Write a story with {}.", "A story about {}, please."]
    left_out = {tuple(p) for p in held_out}
    while count > 0:
        if rng.random() < 0.1:
            yield [BOS]
            count -= 1
            continue
        chosen = rng.sample(things, rng.choice([1, 2, 2, 3, 3, 3]))
        listed = " and ".join(filter(None, [", ".join(chosen[:-1]), chosen[-1]]))
        text = f"<|user|>{rng.choice(forms).format(listed)}<|end|><|assistant|>"
        ids = [BOS, *tokenizer.encode(text, add_special_tokens=False).ids]
        if tuple(ids) not in left_out:
            yield ids
            count -= 1


def make_texts(target, prompts, length, rng, seed):
    """Texts [n, length] and the lengths of their prompts, on the target's device."""
    prompts, texts = list(prompts), []
    for at in range(0, len(prompts), 8192):
        part = prompts[at:at + 8192]
        hot = [rng.choice([0.0, 0.5, 0.8, 1.0, 1.0]) if len(p) > 1 else 1.0 for p in part]
        texts.append(sample(target, part, length, hot, seed + at))
    return torch.cat(texts), torch.tensor([len(p) for p in prompts], device=target.device)


# ---- training ----


def causal(rows, starts, device):
    """Mask [batch, 1, rows, rows]: a row sees keys from its text's start up to itself; a row before
    the start sees itself."""
    at = torch.arange(rows, device=device)
    seen = (at[None, :] <= at[:, None])[None] & (at[None, None, :] >= starts[:, None, None])
    return (seen | torch.eye(rows, dtype=torch.bool, device=device)[None])[:, None]


def loss_of(head, embedding, tokens, begins, features, target_logits, steps, starts):
    rows = tokens.shape[1]
    at = torch.arange(rows, device=tokens.device)[None]
    lengths = (tokens != 0).sum(1, keepdim=True)
    wanted = target_logits[..., head.kept].float().log_softmax(-1)
    total = 0.0
    allowed = causal(rows, starts, tokens.device)
    for step, logits in enumerate(head.unroll(embedding, tokens, features, steps, allowed)):
        # The target's distribution of the same token is 1 + step rows further on.
        ahead = 1 + step
        goal = wanted[:, ahead:]
        drafted = logits[:, :rows - ahead].float().log_softmax(-1)
        predicted = at[:, :rows - ahead] + ahead + 1
        counts = (predicted < lengths) & (predicted >= begins[:, None]) & (at[:, :rows - ahead] >= starts[:, None])
        each = -(goal.exp() * drafted).sum(-1)
        total = total + 0.85 ** step * (each * counts).sum() / counts.sum().clamp(min=1)
    return total


def train_head(head, target, texts, begins, layers, minutes, steps, batch):
    embedding = target.get_input_embeddings()
    optimiser = torch.optim.AdamW(head.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
    generator = torch.Generator().manual_seed(7)
    begun, done = time.time(), 0
    for number in itertools.count():
        share = (time.time() - begun) / (60 * minutes)
        if share >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1, (number + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        chosen = torch.randint(len(texts), (batch,), generator=generator).to(texts.device)
        tokens, begin = texts[chosen], begins[chosen]
        tokens = tokens[:, :int((tokens != 0).sum(1).max())]
        # A third of the texts has no features before some position, as after a cached prefix.
        late = torch.rand(batch, generator=generator).to(texts.device) < 0.33
        place = (torch.rand(batch, generator=generator).to(texts.device) * (begin + 40)).long()
        starts = torch.where(late, place, 0)
        with torch.no_grad():
            features, logits = look_at(target, tokens, layers)
        with torch.autocast(texts.device.type, dtype=torch.bfloat16, enabled=texts.device.type == "cuda"):
            loss = loss_of(head, embedding, tokens, begin, features, logits, steps, starts)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        done += int((tokens != 0).sum())
        if number % 100 == 0:
            print(f"step {number}, {done} tokens, loss {loss.item():.3f}", flush=True)
    print(f"{number} steps, {done} tokens in {time.time() - begun:.0f} s", flush=True)


def round_to(head, dtype):
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(parameter.to(dtype).float())


# ---- evaluation ----


@torch.no_grad()
def acceptance(head, target, prompts, texts, temperature, layers, *, coupled=True, without_prompt=False):
    """How often the draft token at each place is accepted, given that those before it are.

    `texts` are the target's answers to the prompts with seed 1000 at this temperature (`sample`); a
    draft begins at every token of the answers. Draft tokens are drawn as in the server: with the
    target's noise, or with other noise (coupled=False)."""
    vocabulary = target.config.vocab_size
    hits, tries = torch.zeros(head.places), torch.zeros(head.places)
    noise = torch.stack([gumbel(1000 if coupled else 5000, p, (len(prompts), vocabulary), texts.device)
                         for p in range(texts.shape[1])])
    for number, prompt in enumerate(prompts):
        text = texts[number:number + 1, :int((texts[number] != 0).sum())]
        features, _ = look_at(target, text, layers)
        rows, begin = text.shape[1], len(prompt)
        start = begin - 1 if without_prompt else 0
        starts = torch.tensor([start], device=text.device)
        allowed = causal(rows, starts, text.device)
        logits = head.unroll(target.get_input_embeddings(), text, features, head.places, allowed)
        stands = torch.ones(rows, dtype=torch.bool, device=text.device)
        at = torch.arange(rows, device=text.device)
        for step in range(head.places):
            predicted = at + step + 2
            stands &= (predicted < rows) & (predicted > begin) & (at >= start)
            where = predicted.clamp(max=rows - 1)
            drawn = head.kept[(logits[step][0] + temperature * noise[where, number][:, head.kept]).argmax(-1)]
            tries[step] += float(stands.sum())
            stands &= drawn == text[0, where]
            hits[step] += float(stands.sum())
    return [round(float(h / max(1.0, float(t))), 4) for h, t in zip(hits, tries)]


def write_expected(head, target, held_out, layers, folder):
    cases, prompts = [], held_out[:4]
    for prompt, text in zip(prompts, sample(target, prompts, 160, [0.0] * len(prompts), 1)):
        text = text[text != 0].tolist()
        for cut in (len(prompt) + 1, len(prompt) + 23, len(prompt) + 60):
            if cut + 1 >= len(text):
                continue
            drafted, margin = head.drafts_after(target, text[:cut], layers, min(5, head.places))
            cases.append({"tokens": text[:cut], "prompt_tokens": len(prompt), "draft": drafted,
                          "margin": round(margin, 5)})
    write_json(os.path.join(folder, "expected.json"), {"source": "PyTorch, float32, greedy", "cases": cases})


def choose_vocabulary(texts, size, vocabulary):
    counts = torch.bincount(texts.flatten().cpu(), minlength=vocabulary)
    counts[0] = 0
    order = counts.argsort(descending=True)
    for n in (512, 768, 1024, 1536, 2048):
        print(f"the {n} most frequent tokens are {float(counts[order[:n]].sum() / counts.sum()):.5f} of the text")
    return order[:size].sort().values, float(counts[order[:size]].sum() / counts.sum())


# ---- the training script ----


def numbers_of(target):
    """The values of a head's config.json that are copied from the target's."""
    c = target.config
    rope = getattr(c, "rope_parameters", None) or {"rope_theta": c.rope_theta}
    return {
        "hidden_size": c.hidden_size, "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads, "hidden_act": "silu",
        "rms_norm_eps": c.rms_norm_eps, "rope_theta": rope["rope_theta"],
        "max_position_embeddings": c.max_position_embeddings, "vocab_size": c.vocab_size,
    }


def written_config(config):
    written = dict(config)
    written["rope_parameters"] = {"rope_theta": written.pop("rope_theta"), "rope_type": "default"}
    return written


def train(args, make_head, layers_of):
    """`make_head`(target, texts, args) returns the head and the figures to report with its
    acceptance."""
    from tokenizers import Tokenizer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    target = load_target(args.target, device)
    tokenizer = Tokenizer.from_file(os.path.join(args.target, "tokenizer.json"))
    held_out = held_out_prompts(tokenizer)
    begun = time.time()
    if args.texts and os.path.exists(args.texts):
        texts, begins = (t.to(device) for t in torch.load(args.texts))
    else:
        prompts = training_prompts(tokenizer, args.stories, rng, held_out)
        texts, begins = make_texts(target, prompts, args.length, rng, args.seed)
        if args.texts:
            torch.save((texts.cpu(), begins.cpu()), args.texts)
    print(f"{len(texts)} texts of {int((texts != 0).sum())} tokens in {time.time() - begun:.0f} s", flush=True)
    layers = layers_of(target)
    head, figures = make_head(target, texts, args)
    head = head.to(device)
    train_head(head, target, texts, begins, layers, args.minutes, args.steps, args.batch)
    round_to(head, torch.bfloat16)
    head.eval()
    head.save(args.out, torch.bfloat16)
    figures = {"prompts": len(held_out), **figures, "parameters": sum(p.numel() for p in head.parameters())}
    for temperature in (0.0, 0.8, 1.0):
        answers = sample(target, held_out, 330, [temperature] * len(held_out), 1000)
        judge = lambda **how: acceptance(head, target, held_out, answers, temperature, layers, **how)
        figures[f"T={temperature}"] = judge()
        if temperature > 0:
            figures[f"T={temperature}, other noise"] = judge(coupled=False)
        else:
            figures["T=0.0, no features of the prompt"] = judge(without_prompt=True)
    write_json(os.path.join(args.out, "acceptance.json"), figures)
    print(json.dumps(figures, indent=1), flush=True)
    write_expected(head, target, held_out, layers, args.out)


def train_options(parser):
    parser.add_argument("--stories", type=int, default=24000)
    parser.add_argument("--length", type=int, default=320)
    parser.add_argument("--minutes", type=float, default=2.5)
    parser.add_argument("--steps", type=int, default=EVALUATED)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", help="a file that keeps the sampled texts")
    folder_options(parser)


def folder_options(parser):
    parser.add_argument("--target", required=True)
    parser.add_argument("--out", required=True)
