// Writes docs/config.md to standard output: `make docs`.
#include <cstdio>

#include "config/config.h"

int main() {
  std::fputs(aisp::SettingsAsMarkdown().c_str(), stdout);
  return 0;
}
