#include "common/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr Duration kWindow = std::chrono::seconds(10);  // over which the rate is measured
constexpr Duration kRedraw = std::chrono::milliseconds(200);
constexpr Duration kSample = std::chrono::milliseconds(100);
constexpr size_t kWidestBar = 30, kNarrowestBar = 8;

double Fraction(const ProgressState& s) {
  if (s.total_bytes == 0) return 0;
  return std::min(1.0, static_cast<double>(s.done_bytes) / static_cast<double>(s.total_bytes));
}

std::string Numbers(const ProgressState& s) {
  std::string text = HumanBytes(s.done_bytes);
  if (s.total_bytes > 0) text += " of " + HumanBytes(s.total_bytes);
  if (s.bytes_per_s >= 1)
    text += fmt::format(", {}/s", HumanBytes(static_cast<uint64_t>(s.bytes_per_s)));
  if (s.seconds_left() > 0) text += fmt::format(", {} left", HumanSeconds(s.seconds_left()));
  if (!s.note.empty()) text += ", " + s.note;
  return text;
}

size_t Columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
  return size.ws_col;
}

void Draw(const std::string& text) {
  const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
  (void)ignored;
}

}  // namespace

double ProgressState::seconds_left() const {
  if (bytes_per_s < 1 || done_bytes >= total_bytes) return 0;
  return static_cast<double>(total_bytes - done_bytes) / bytes_per_s;
}

std::string HumanSeconds(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(std::min(seconds, 1e9)));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
}

std::string ProgressText(const ProgressState& s) {
  const std::string percent =
      s.total_bytes > 0 ? fmt::format("{:.0f} %, ", std::floor(100 * Fraction(s))) : "";
  return fmt::format("{}: {}{}", s.what, percent, Numbers(s));
}

std::string ProgressBar(const ProgressState& s, size_t columns) {
  const std::string numbers = Numbers(s);
  if (s.total_bytes == 0) return fmt::format("{}: {}", s.what, numbers).substr(0, columns);
  const std::string begin = fmt::format("{} {:3.0f} % ", s.what, std::floor(100 * Fraction(s)));
  const size_t taken = begin.size() + numbers.size() + 3;  // for brackets and a space
  if (columns < taken + kNarrowestBar) return (begin + numbers).substr(0, columns);
  const size_t width = std::min(kWidestBar, columns - taken);
  const auto full = static_cast<size_t>(Fraction(s) * static_cast<double>(width));
  std::string bar(full, '=');
  if (full < width) bar += '>';
  bar.resize(width, ' ');
  return fmt::format("{}[{}] {}", begin, bar, numbers);
}

bool MayDrawOnTerminal() {
  return isatty(STDERR_FILENO) == 1 && tcgetpgrp(STDERR_FILENO) == getpgrp();
}

ProgressMeter::ProgressMeter(const Clock* clock, Options options,
                             std::function<void(const ProgressState&)> on_line)
    : clock_(clock),
      options_(options),
      on_line_(std::move(on_line)),
      begin_(clock->Now()),
      shown_(begin_) {}

double ProgressMeter::Rate(Instant now, uint64_t done) {
  // Bytes that were already there do not count as speed, and a lower `done` restarts the window.
  if (samples_.empty() || done < samples_.back().second) samples_.clear();
  if (samples_.empty() || now - samples_.back().first >= kSample) samples_.emplace_back(now, done);
  while (samples_.size() > 2 && now - samples_[1].first >= kWindow) samples_.pop_front();
  const double seconds = ToSeconds(now - samples_.front().first);
  return seconds < 0.1 ? 0 : static_cast<double>(done - samples_.front().second) / seconds;
}

void ProgressMeter::Update(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                           const std::string& note) {
  const Instant now = clock_->Now();
  ProgressState state{what, done_bytes, total_bytes, Rate(now, done_bytes), note};
  if (!options_.terminal) {
    if (now - shown_ < options_.every) return;
    shown_ = now;
    if (on_line_) on_line_(state);
    return;
  }
  if (now - begin_ < options_.quiet || (drawn_ && now - shown_ < kRedraw)) return;
  shown_ = now;
  drawn_ = true;
  // The cursor returns to the start of the line, so that a log line overwrites the bar.
  Draw("\r\033[K" + ProgressBar(state, Columns() - 1) + "\r");
}

void ProgressMeter::Finish() {
  if (drawn_) Draw("\r\033[K");
  drawn_ = false;
}

}  // namespace aisp
