"""The cases of models.py in transformers on PyTorch."""

import sys

try:
    import torch
    import transformers
except ImportError:
    sys.exit(0)

from text.measured import seconds_of, serve, token_seconds


def load(options):
    torch.set_num_threads(options["threads"])
    return transformers.AutoModelForCausalLM.from_pretrained(
        options["folder"], dtype=getattr(torch, options["dtype"])
    )


def decode(options):
    """With a static cache if the step is compiled, as transformers recommends, and its default
    cache otherwise, which is faster without compilation."""
    model = load(options).eval()
    tokens = torch.arange(8)[None]
    more = {}
    if options.get("compile"):
        more["cache_implementation"] = "static"
        model.forward = torch.compile(model.forward)

    @torch.inference_mode()
    def run(count):
        model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            **more,
        )

    return lambda: token_seconds(run, options["tokens"]), {}


def prompt(options, length=64):
    model = load(options).eval()
    tokens = torch.arange(length)[None]

    @torch.inference_mode()
    def run():
        for _ in range(4):
            model(tokens, use_cache=False)

    run()
    return lambda: seconds_of(run, 4 * length), {}


def train(options, adapt=None):
    model = load(options).train()
    if adapt:
        model = adapt(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-4)
    vocab, shape = model.config.vocab_size, (options["rows"], options["time"])
    tokens, labels = [torch.randint(0, vocab, shape) for _ in range(2)]

    def loss_of(tokens, labels):
        scores = model(tokens, use_cache=False).logits
        return torch.nn.functional.cross_entropy(scores.view(-1, vocab), labels.view(-1))

    if options.get("compile"):
        loss_of = torch.compile(loss_of)

    def run():
        optimizer.zero_grad()
        loss_of(tokens, labels).backward()
        optimizer.step()

    run()
    share = sum(p.numel() for p in trained) / sum(p.numel() for p in model.parameters())
    return lambda: seconds_of(run), {"trained": f"{share:.2%}"}


def low_rank(options):
    import peft

    layers = ["q_proj", "v_proj"]
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=layers, task_type="CAUSAL_LM")
    return train(options, lambda model: peft.get_peft_model(model, config))


def loading(options):
    kept = []

    def run():
        kept.append(load(options))
        sum(float(p.view(-1)[::1024].sum()) for p in kept[0].parameters())  # maps are read lazily

    return lambda: seconds_of(run, after=kept.clear), {}


WORK = {"decode": decode, "prompt": prompt, "train": train, "lora": low_rank, "load": loading}

if __name__ == "__main__":
    serve(lambda options: WORK[options["work"]](options))
