#include "cli/bench_figures.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace meshnet::cli {
namespace {

double MedianOver(const std::vector<BurstTimes>& bursts, const std::function<double(const BurstTimes&)>& figure) {
  std::vector<double> values;
  for (const BurstTimes& burst : bursts) values.push_back(figure(burst));
  return Quantile(std::move(values), 0.5);
}

double Rate(double tokens, double seconds) { return seconds > 0 ? tokens / seconds : 0; }

std::vector<double> AllGaps(const std::vector<BurstTimes>& bursts) {
  std::vector<double> gaps;
  for (const BurstTimes& burst : bursts) gaps.insert(gaps.end(), burst.gap_seconds.begin(), burst.gap_seconds.end());
  return gaps;
}

}  // namespace

void AddSession(const std::vector<double>& token_times, BurstTimes* times) {
  if (token_times.empty()) return;
  times->first_token_seconds.push_back(token_times.front());
  times->generation_seconds.push_back(token_times.back() - token_times.front());
  times->wall_seconds = std::max(times->wall_seconds, token_times.back());
  for (size_t i = 1; i < token_times.size(); ++i) times->gap_seconds.push_back(token_times[i] - token_times[i - 1]);
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  size_t count = values.size();
  if (share == 0.5) return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
  size_t rank = static_cast<size_t>(std::ceil(share * static_cast<double>(count)));
  return values[std::clamp<size_t>(rank, 1, count) - 1];
}

std::vector<BenchRow> MakeRows(const std::string& target, uint32_t threads, const BurstShape& shape, const std::vector<BurstTimes>& bursts) {
  std::string prompt_test = "pp" + std::to_string(shape.prompt_tokens), generation_test = "tg" + std::to_string(shape.generated_tokens);
  BenchRow row{target, "", threads, shape.sessions, 0, 0, 0, 0};
  row.first_token_seconds_p50 = MedianOver(bursts, [](const BurstTimes& burst) { return Quantile(burst.first_token_seconds, 0.5); });
  std::vector<BenchRow> rows;
  if (shape.sessions == 1) {
    BenchRow prompt = row;
    prompt.test = prompt_test;
    prompt.tokens_per_second = Rate(shape.prompt_tokens, row.first_token_seconds_p50);
    rows.push_back(prompt);
  }
  row.gap_seconds_p50 = Quantile(AllGaps(bursts), 0.5);
  row.gap_seconds_p99 = Quantile(AllGaps(bursts), 0.99);
  if (shape.sessions == 1 && shape.generated_tokens > 1) {
    BenchRow generation = row;
    generation.test = generation_test;
    generation.tokens_per_second = Rate(shape.generated_tokens - 1.0, MedianOver(bursts, [](const BurstTimes& burst) {
                                          return Quantile(burst.generation_seconds, 0.5);
                                        }));
    rows.push_back(generation);
  }
  row.test = prompt_test + "+" + generation_test;
  double tokens = static_cast<double>(shape.sessions) * (shape.prompt_tokens + shape.generated_tokens);
  row.tokens_per_second = Rate(tokens, MedianOver(bursts, [](const BurstTimes& burst) { return burst.wall_seconds; }));
  rows.push_back(row);
  return rows;
}

std::vector<BenchRatio> MakeRatios(const std::vector<BenchRow>& rows, const std::string& target, const std::string& base) {
  std::vector<BenchRatio> ratios;
  for (const BenchRow& row : rows) {
    if (row.target != target) continue;
    for (const BenchRow& other : rows) {
      if (other.target != base || other.test != row.test || other.sessions != row.sessions || other.tokens_per_second <= 0) continue;
      ratios.push_back({row.test + (row.sessions > 1 ? " x" + std::to_string(row.sessions) : ""), row.tokens_per_second / other.tokens_per_second});
    }
  }
  return ratios;
}

}  // namespace meshnet::cli
