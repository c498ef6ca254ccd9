// The settings of the model. Help texts are sentences for an operator: what it does, and what 0 or
// "" means.
#include "config/settings.h"

namespace aisp {

// Long: a table, one statement for each setting.
void BindModelSettings(Config::Model& m, SettingTable& t) {
  t.Section("model", "What is served, and in which numbers.");
  t.Add("path", &m.path,
        "Folder of a Hugging Face checkpoint, or org/name[@revision] of the hub, which is "
        "downloaded "
        "when its cache lacks it, or the name of a shipped model; empty: the built-in story-7m.")
      .Flag("--model");
  t.Add("served_name", &m.served_name,
        "Name that clients use; empty: org/name, or the folder's name.")
      .Flag("--served-model-name");
  t.Add("dtype", &m.dtype, "Weights and matmuls; auto: as the checkpoint.")
      .Flag("--dtype")
      .OneOf({"auto", "f32", "bf16"});
  t.Add("kv_dtype", &m.kv_dtype, "KV cache; auto: as the matmuls. fp8 is e4m3.")
      .Flag("--kv-dtype")
      .OneOf({"auto", "f32", "bf16", "fp8"});
  t.Add("chat_template", &m.chat_template,
        "File with a Jinja chat template; empty: the checkpoint's own.")
      .Flag("--chat-template");
  t.Add("tool_call_parser", &m.tool_call_parser,
        "How this model writes tool calls; auto: as its chat template says; none: tools are "
        "refused.")
      .Flag("--tool-call-parser")
      .OneOf({"auto", "none", "hermes", "llama3_json", "mistral", "mistral_args", "deepseek_v3",
              "phi4_mini_json", "pythonic", "qwen3_coder", "openai"});
  t.Add("reasoning_parser", &m.reasoning_parser,
        "How this model writes its thinking; auto: as its chat template says; none: all it writes "
        "is content.")
      .Flag("--reasoning-parser")
      .OneOf({"auto", "none", "think", "mistral", "openai"});
  t.Add("pooling", &m.pooling,
        "What an embedding is made of: the mean of all positions' hidden states, the last one's or "
        "the first one's (cls); auto: as the checkpoint's 1_Pooling/config.json says, else last.")
      .Flag("--pooling")
      .OneOf({"auto", "mean", "last", "cls"});
  t.Add("max_model_len", &m.max_model_len,
        "Longest prompt plus answer in tokens; 0: what the model was made for.")
      .Flag("--max-model-len")
      .Range(0, 1 << 24);
  t.Add("threads", &m.threads, "CPU threads of one worker's step.")
      .Flag("--threads")
      .Range(1, 1024);
  t.Add("device", &m.device,
        "What a worker computes on; cuda: the first GPU; auto: a GPU if there is one.")
      .Flag("--device")
      .OneOf({"auto", "cpu", "cuda", "cuda:N"});
  t.Add("weights", &m.weights,
        "random:SEED makes weights up, for measuring; the model's folder then needs only a "
        "config.json. Empty: the checkpoint's.")
      .Flag("--weights");
  t.Add("tuning_cache", &m.tuning_cache,
        "File that keeps which matrix kernels were fastest on this GPU, so that later starts need "
        "not measure; a folder (ending in /): a file for each kind of GPU in it; auto: the user's "
        "cache folder; empty: none.")
      .Flag("--tuning-cache");
  t.Add("quantization", &m.quantization,
        "Weights on a GPU; auto: as the checkpoint has them, none: in the matmuls' dtype; fp8 and "
        "nvfp4 quantise on load.")
      .Flag("--quantization")
      .OneOf({"auto", "none", "fp8", "nvfp4"});
  t.Add("fp8_activations", &m.fp8_activations,
        "Round the inputs of layers with FP8 weights to FP8 on a GPU (W8A8): on and off at every "
        "step; auto: in steps of so many rows that it is faster, if the checkpoint or "
        "--quantization fp8 asks for it.")
      .Flag("--fp8-activations")
      .OneOf({"auto", "on", "off"});
  t.Add("lora_modules", &m.lora_modules,
        "LoRA adapters in PEFT's layout that are served beside the model, each NAME=FOLDER; a "
        "request names one as its model. Equal on all processes.")
      .Flag("--lora");
  t.Add("runtime_lora", &m.runtime_lora,
        "LoRA adapters may be loaded and unloaded while the server runs, on the admin port "
        "(POST /v1/load_lora_adapter, /v1/unload_lora_adapter). Equal on all processes.")
      .Flag("--runtime-lora");
  t.Add("max_loras", &m.max_loras,
        "LoRA adapters that may be served at one time; one more is refused.")
      .Flag("--max-loras")
      .Range(1, 1024);
  t.Add("max_lora_rank", &m.max_lora_rank,
        "Greatest rank of a LoRA adapter; one above is refused. On a GPU at most 128, and with "
        "--runtime-lora its memory is reserved for all of max_loras.")
      .Flag("--max-lora-rank")
      .Range(1, 4096);
  t.Add("allow_mixed_precision", &m.allow_mixed_precision,
        "Workers that compute in different formats may serve together, taking each other's KV for "
        "their own, converted where its dtype differs; else a worker that differs is refused. "
        "Equal on all processes.")
      .Flag("--allow-mixed-precision");
}

}  // namespace aisp
