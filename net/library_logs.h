// What gRPC and Protobuf have to say, in the log of the process. By themselves they write to stderr
// from the thread that met it: a peer that sends what cannot be read, which needs no key, would
// fill that, and a reader that sleeps would stop gRPC's threads.
#pragma once

namespace aisp {

// From now on, for the process: their warnings and errors as events of our log, a line of each in
// ten seconds and how many were suppressed. Before other threads use them.
void TakeLibraryLogs();

}  // namespace aisp
