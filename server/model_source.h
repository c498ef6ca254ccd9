// Which model `--model` (model.path) means. The rules, in this order; the first that fits is taken:
//
//   1. nothing                            the built-in model beside the program
//   2. a folder that exists               that folder, also when it looks like org/name
//   3. with --weights random:SEED         a config.json by its path, or a shipped shape by its name
//   4. org/name or org/name@revision      a model of the hub: the cache, else a download
//   5. the bare name of a shipped model   that model, beside the program
//
// What begins with /, . or ~ is a path and never a name. org/name@main means the hub where a folder
// org/name is in the way.
#pragma once

#include <functional>
#include <string>

#include "common/result.h"
#include "config/config.h"

namespace aisp {

// ResolveModelPath (server/served_model.h) follows them without any download.
// Whether rule 4 is the one that fits, by the look of the name.
bool NeedsTheHub(const Config& config);

// The same with the download that rule 4 may need: afterwards model.path is a folder and
// model.served_name is set. Shows progress; `cancelled` ends it: CANCELLED. What is on disk is
// taken as it is, without asking the hub.
Status BringModelHere(Config* config, const std::function<bool()>& cancelled);

// What clients call it: model.served_name, org/name for one of the hub, else the folder's name.
std::string ServedNameOf(const Config& config, const std::string& path);

}  // namespace aisp
