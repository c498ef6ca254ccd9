// Resolves `--model` (model.path). The first rule that applies wins:
//
//   1. nothing                            the built-in model beside the program
//   2. a folder that exists               that folder, also when it looks like org/name
//   3. with --weights random:SEED         a config.json by its path, or a shipped shape by its name
//   4. org/name or org/name@revision      a model of the hub: the cache, else a download
//   5. the bare name of a shipped model   that model, beside the program
//
// A name that begins with /, . or ~ is a path. org/name@main means the hub even if a folder
// org/name exists.
#pragma once

#include <functional>
#include <string>

#include "common/result.h"
#include "config/config.h"

namespace aisp {

// ResolveModelPath (server/served_model.h) applies the rules without downloading. This function
// says whether rule 4 applies, judging by the name.
bool NeedsTheHub(const Config& config);

// Also downloads for rule 4; afterwards model.path is a folder and model.served_name is set. Uses
// what is on disk without asking the hub. Shows progress. CANCELLED when `cancelled` returns true.
Status BringModelHere(Config* config, const std::function<bool()>& cancelled);

// The name for clients: model.served_name, else org/name for a hub model, else the folder's name.
std::string ServedNameOf(const Config& config, const std::string& path);

}  // namespace aisp
