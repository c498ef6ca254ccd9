// Where models are downloaded from and cached. Plain data, used by config/ too, which reads it from
// the environment variables of Hugging Face's tools.
#pragma once

#include <string>

namespace aisp {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";  // without a trailing slash
  std::string cache;    // folder of models--org--name; "": neither HF_HOME nor HOME is set
  std::string token;    // secret: sent to the endpoint's own origin, never logged
  std::string ca_file;  // PEM; "": the system's
  bool offline = false;
  int timeout_s = 10;     // without data or below 1 KiB/s, and for connecting
  int connections = 8;    // concurrent
  int backoff_ms = 250;   // before the first retry; doubled each time, 8 s at most
  int lock_wait_s = 120;  // for another process whose download stalls
};

}  // namespace aisp
