// Where models by name come from and where they are kept. Plain data, for config/ too, which reads
// it from the environment that Hugging Face's own tools use.
#pragma once

#include <string>

namespace aisp {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";  // without a slash at its end
  std::string cache;    // folder of models--org--name; "": neither HF_HOME nor HOME is set
  std::string token;    // secret: sent to the endpoint's own origin, never logged
  std::string ca_file;  // PEM; "": the system's
  bool offline = false;
  int timeout_s = 10;     // without a byte, or below 1 KiB/s on average, and for connecting
  int connections = 8;    // at a time
  int backoff_ms = 250;   // before the first retry; doubled each time, 8 s at most
  int lock_wait_s = 120;  // for another process that downloads nothing
};

}  // namespace aisp
