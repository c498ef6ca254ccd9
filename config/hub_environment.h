// The environment variables of Hugging Face's tools. Any thread, before setenv.
#pragma once

#include "common/result.h"
#include "hub/options.h"

namespace aisp {

// Reads HF_ENDPOINT; HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub; HF_TOKEN, HF_TOKEN_PATH or
// HF_HOME/token (not with HF_HUB_DISABLE_IMPLICIT_TOKEN); HF_HUB_OFFLINE; HF_HUB_DOWNLOAD_TIMEOUT;
// SSL_CERT_FILE. INVALID_ARGUMENT names the variable and its allowed values, never the token.
Result<HubOptions> HubOptionsFromEnvironment();

}  // namespace aisp
