// A library with the symbols of NVML and of the CUDA driver that aisp looks up; for
// gpu_metrics_test.cc. Two devices: ordinal 0 on bus 0000:01:00.0, ordinal 1 on bus 0000:05:00.0.
// The maximum SM clock is missing, as in older drivers.
#include <cstdio>
#include <cstring>

extern "C" {

int cuDeviceGet(int* device, int ordinal) {
  *device = 10 + ordinal;
  return ordinal < 2 ? 0 : 101;
}
int cuDeviceGetPCIBusId(char* out, int size, int device) {
  snprintf(out, static_cast<size_t>(size), "0000:%02d:00.0", device == 10 ? 1 : 5);
  return 0;
}

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  static int bus_five;
  if (strcmp(bus, "0000:05:00.0") != 0) return 6;
  *device = &bus_five;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* /*device*/, unsigned long long* total_free_used) {
  total_free_used[0] = 80000;
  total_free_used[1] = 75000;
  total_free_used[2] = 5000;
  return 0;
}
int nvmlDeviceGetClockInfo(void* /*device*/, int which, unsigned* mhz) {
  *mhz = which == 1 ? 1755 : 2619;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* /*device*/, unsigned* gpu_memory) {
  gpu_memory[0] = 50;
  gpu_memory[1] = 20;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* /*device*/, unsigned* milliwatts) {
  *milliwatts = 350500;
  return 0;
}
int nvmlDeviceGetTemperature(void* /*device*/, int sensor, unsigned* celsius) {
  *celsius = sensor == 0 ? 61 : 0;
  return 0;
}
}
