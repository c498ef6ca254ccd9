// Routes messages of gRPC and Protobuf to the process's log. By default they write to stderr from
// the calling thread. A peer that sends malformed data, without a key, could flood it, and a
// sleeping reader of stderr would block gRPC's threads.
#pragma once

namespace aisp {

// From now on their warnings and errors are events of our log: one line per ten seconds with the
// number suppressed. Call before other threads use them.
void TakeLibraryLogs();

}  // namespace aisp
