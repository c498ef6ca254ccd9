// Stands in front of Protobuf's header of this name in builds under ThreadSanitizer. That header
// adds two counters to each map where it sees such a build; the packaged library was built without
// them, so the map would be read at another offset than the library wrote it.
#pragma once

#include <memory>  // it asks for the same macro, and is to see it

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
