// Folders of the user who runs the program, from the environment. Nothing is created here. Any
// thread, before setenv.
#pragma once

#include <string>

namespace aisp {

// $XDG_CACHE_HOME/aisp, else $HOME/.cache/aisp; "" when neither is set to an absolute path.
std::string UserCacheFolder();

}  // namespace aisp
