// Output of `aisp bench kv`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/kv.h"
#include "common/strings.h"

namespace aisp {

Result<std::vector<KvWriteShape>> ParseKvShapes(std::string_view text) {
  // A write of all pool would leave nothing to scatter over.
  constexpr int64_t kMostKib = int64_t{128} << 10;
  std::vector<KvWriteShape> shapes;
  for (const std::string_view shape : Split(text, ',')) {
    const std::vector<std::string_view> sides = Split(shape, 'x');
    const Result<int64_t> kib = ParseIntInRange(sides.front(), 1, kMostKib);
    const Result<int64_t> blocks = ParseIntInRange(sides.back(), 1, kMostKib);
    if (sides.size() != 2 || !kib || !blocks || *kib * *blocks > kMostKib) {
      return InvalidArgument(
          fmt::format("'{}' is no shape of a write: KiB of a block x blocks, up to 128 MiB, as "
                      "64x16",
                      Excerpt(shape)));
    }
    shapes.push_back({static_cast<uint64_t>(*kib) << 10, static_cast<size_t>(*blocks)});
  }
  return shapes;
}

std::string ToTable(const KvBench& bench) {
  std::string out = fmt::format("{:<10}{:>12}{:>8}{:>14}{:>10}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
                                "lane", "block KiB", "blocks", "one write us", "GB/s", "CPU us/MiB",
                                "of memcpy", "of socket", "of peer", "by CPU");
  const auto part = [](double of) { return of > 0 ? fmt::format("{:.0f}%", of * 100) : ""; };
  for (const KvBenchRow& row : bench.rows) {
    out += fmt::format("{:<10}{:>12}{:>8}{:>14.1f}{:>10.2f}{:>12.0f}{:>12}{:>12}{:>12}{:>12}\n",
                       row.lane, row.block_kib, row.blocks, row.write_us, row.gb_per_s,
                       row.cpu_us_per_mib, part(row.of_memcpy), part(row.of_socket),
                       part(row.of_peer), part(row.by_cpu));
  }
  for (const std::string& why : bench.left_out) out += "left out: " + why + "\n";
  return out;
}

std::string ToJson(const KvBench& bench) {
  std::vector<std::string> rows;
  rows.reserve(bench.rows.size());
  for (const KvBenchRow& row : bench.rows) {
    rows.push_back(
        fmt::format("{{\"lane\": \"{}\", \"block_kib\": {}, \"blocks\": {}, \"write_us\": {:.2f}, "
                    "\"gb_per_s\": {:.3f}, \"cpu_us_per_mib\": {:.1f}, \"of_memcpy\": {:.3f}, "
                    "\"of_socket\": {:.3f}, \"of_peer\": {:.3f}, \"by_cpu\": {:.3f}}}",
                    row.lane, row.block_kib, row.blocks, row.write_us, row.gb_per_s,
                    row.cpu_us_per_mib, row.of_memcpy, row.of_socket, row.of_peer, row.by_cpu));
  }
  std::vector<std::string> left_out;
  left_out.reserve(bench.left_out.size());
  for (const std::string& why : bench.left_out) left_out.push_back(nlohmann::json(why).dump());
  return fmt::format("\"rows\": [{}], \"left_out\": [{}]", Join(rows, ", "), Join(left_out, ", "));
}

}  // namespace aisp
