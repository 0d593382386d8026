// Times of one burst of answers, and the figures made of many bursts. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshnet::cli {

// `sessions` answers at once, each to its own prompt.
struct BurstShape {
  uint32_t sessions = 1;
  uint32_t prompt_tokens = 0;
  uint32_t generated_tokens = 0;
  uint32_t number = 0;  // another number, other prompts
};

struct BurstTimes {
  double wall_seconds = 0;                    // from the first request to the last token
  std::vector<double> first_token_seconds;    // per session, from the start of the burst
  std::vector<double> gap_seconds;            // between neighbouring tokens of a session
  std::vector<double> generation_seconds;     // per session, from its first token to its last
};

// Times of the tokens of one session, in seconds from the start of the burst.
void AddSession(const std::vector<double>& token_times, BurstTimes* times);

// 0 when there are no values. `share` 0.5 is the median (between two middle ones: their mean), 0.99 the nearest rank.
double Quantile(std::vector<double> values, double share);

// One line of the table and of the JSON.
struct BenchRow {
  std::string target;
  std::string test;  // "pp256", "tg64", "pp256+tg64"
  uint32_t threads = 0;
  uint32_t sessions = 1;
  double tokens_per_second = 0;
  double first_token_seconds_p50 = 0;
  double gap_seconds_p50 = 0;
  double gap_seconds_p99 = 0;
};

// Medians over the bursts of one target and one shape: for one session prompt and generation apart, and always all tokens over the whole time.
std::vector<BenchRow> MakeRows(const std::string& target, uint32_t threads, const BurstShape& shape, const std::vector<BurstTimes>& bursts);

// Tokens a second of `target` over those of `base`, for each row that both have; named "pp256", "pp256+tg64 x16".
struct BenchRatio {
  std::string name;
  double ratio = 0;
};
std::vector<BenchRatio> MakeRatios(const std::vector<BenchRow>& rows, const std::string& target, const std::string& base);

}  // namespace meshnet::cli
