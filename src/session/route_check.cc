#include "session/route_check.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/check.h"

namespace meshnet {
namespace {

// Room that a frame's own fields take beside its payload.
constexpr uint64_t kFrameHeadBytes = 4096;

std::string EntryName(const std::vector<ShardDescription>& all, size_t index) {
  return "stage " + all[index].range.Text() + " (entry " + std::to_string(index + 1) + " of the route)";
}

std::string ProtocolText(const ShardDescription& d) {
  return std::to_string(d.protocol_major) + "." + std::to_string(d.protocol_minor);
}

std::string OnOff(bool value) { return value ? "on" : "off"; }

// One property that two stages may differ in, as people read it.
struct Property {
  const char* name;
  std::string (*text)(const ShardDescription&);
  std::string (*note)(const ShardDescription&) = nullptr;  // said beside it, not compared
};

// Differences that change what the tokens mean: such stages do not belong together.
const Property kMustBeEqual[] = {
    {"protocol version", ProtocolText},
    {"model root", [](const ShardDescription& d) { return d.model_root.Hex(); }, [](const ShardDescription& d) { return d.model_name; }},
    {"architecture", [](const ShardDescription& d) { return d.architecture; }},
    {"layer count", [](const ShardDescription& d) { return std::to_string(d.layer_count); }},
    {"boundary width", [](const ShardDescription& d) { return std::to_string(d.boundary_width); }},
    {"vocabulary size", [](const ShardDescription& d) { return std::to_string(d.vocabulary_size); }},
    {"llama.cpp tree", [](const ShardDescription& d) { return d.numerics.engine_tree; }},
    {"numerics mode", [](const ShardDescription& d) { return std::string(Name(d.numerics.mode)); }},
    {"KV type of keys", [](const ShardDescription& d) { return d.numerics.kv_type_k; }},
    {"KV type of values", [](const ShardDescription& d) { return d.numerics.kv_type_v; }},
    {"flash attention", [](const ShardDescription& d) { return OnOff(d.numerics.flash_attention); }},
    {"context of one session", [](const ShardDescription& d) { return std::to_string(d.numerics.context_tokens) + " tokens"; }},
};

// Differences that only move the last bits of a result.
const Property kShouldBeEqual[] = {
    {"engine build", [](const ShardDescription& d) { return d.engine_build; }},
    {"backend", [](const ShardDescription& d) { return d.numerics.backend; }},
    {"CPU features", [](const ShardDescription& d) { return d.numerics.cpu_features; }},
    {"weight repacking", [](const ShardDescription& d) { return OnOff(d.numerics.repack); }},
    {"threads", [](const ShardDescription& d) { return std::to_string(d.numerics.threads); }},
};

std::string Shown(const Property& property, const ShardDescription& d) {
  const std::string note = property.note == nullptr ? "" : property.note(d);
  return property.text(d) + (note.empty() ? "" : " (" + note + ")");
}

std::string Difference(const Property& property, const std::vector<ShardDescription>& all, size_t a, size_t b) {
  return std::string(property.name) + " differs: " + EntryName(all, a) + " has " + Shown(property, all[a]) + ", " + EntryName(all, b) +
         " has " + Shown(property, all[b]);
}

std::optional<std::string> FindAlone(const std::vector<ShardDescription>& all) {
  for (size_t i = 0; i < all.size(); ++i) {
    const ShardDescription& d = all[i];
    if (d.protocol_major != kProtocolMajor || d.protocol_minor != kProtocolMinor) {
      return EntryName(all, i) + " speaks protocol " + ProtocolText(d) + ", this gateway speaks " + std::to_string(kProtocolMajor) + "." +
             std::to_string(kProtocolMinor) + ": run the same meshnet release on both sides";
    }
    if (d.range.empty() || d.range.end > d.layer_count) {
      return EntryName(all, i) + " has an impossible layer range in a model of " + std::to_string(d.layer_count) + " layers";
    }
    const std::pair<const char*, uint64_t> needed[] = {{"boundary width", d.boundary_width},
                                                       {"sessions_max", d.limits.sessions_max},
                                                       {"context_tokens", d.limits.context_tokens},
                                                       {"budget_tokens", d.limits.budget_tokens},
                                                       {"chunk_rows_max", d.limits.chunk_rows_max},
                                                       {"window_steps", d.limits.window_steps}};
    for (const auto& [name, value] : needed) {
      if (value == 0) return EntryName(all, i) + " publishes " + name + " 0 and could not run a step";
    }
  }
  return std::nullopt;
}

std::optional<std::string> FindDifference(const std::vector<ShardDescription>& all) {
  for (const Property& property : kMustBeEqual) {
    for (size_t i = 1; i < all.size(); ++i) {
      if (property.text(all[0]) != property.text(all[i])) return Difference(property, all, 0, i);
    }
  }
  return std::nullopt;
}

std::optional<std::string> FindHole(const std::vector<ShardDescription>& all, const std::vector<size_t>& order) {
  const std::string model = "the model has layers " + LayerRange{0, all[0].layer_count}.Text();
  const ShardDescription& first = all[order.front()];
  if (first.range.begin != 0) {
    return "layers " + LayerRange{0, first.range.begin}.Text() + " are on no stage: the first is " + EntryName(all, order.front()) + ", " + model;
  }
  for (size_t i = 1; i < order.size(); ++i) {
    const LayerRange left = all[order[i - 1]].range, right = all[order[i]].range;
    if (right.begin < left.end) {
      return "layers " + LayerRange{right.begin, std::min(left.end, right.end)}.Text() + " are on two stages: " + EntryName(all, order[i - 1]) +
             " and " + EntryName(all, order[i]);
    }
    if (right.begin > left.end) {
      return "layers " + LayerRange{left.end, right.begin}.Text() + " are on no stage: they are missing between " +
             EntryName(all, order[i - 1]) + " and " + EntryName(all, order[i]);
    }
  }
  const ShardDescription& last = all[order.back()];
  if (last.range.end != last.layer_count) {
    return "layers " + LayerRange{last.range.end, last.layer_count}.Text() + " are on no stage: the last is " + EntryName(all, order.back()) +
           ", " + model;
  }
  return std::nullopt;
}

}  // namespace

std::string StageName(const ShardDescription& description, const std::string& address) {
  return "stage " + description.range.Text() + (address.empty() ? "" : " at " + address);
}

RouteCheck CheckRoute(const std::vector<ShardDescription>& descriptions) {
  RouteCheck check;
  if (descriptions.empty()) {
    check.status = Refused("the route has no stages: name at least one worker");
    return check;
  }
  check.order.resize(descriptions.size());
  std::iota(check.order.begin(), check.order.end(), size_t{0});
  std::stable_sort(check.order.begin(), check.order.end(),
                   [&](size_t a, size_t b) { return descriptions[a].range < descriptions[b].range; });

  std::optional<std::string> trouble = FindAlone(descriptions);
  if (!trouble) trouble = FindDifference(descriptions);
  if (!trouble) trouble = FindHole(descriptions, check.order);
  if (trouble) {
    check.status = Refused("the route is refused: " + *trouble);
    check.order.clear();
    return check;
  }
  for (const Property& property : kShouldBeEqual) {
    for (size_t i = 1; i < descriptions.size(); ++i) {
      if (property.text(descriptions[0]) == property.text(descriptions[i])) continue;
      check.warnings.push_back(Difference(property, descriptions, 0, i) + "; results may differ in their last bits from one machine's");
      break;
    }
  }
  return check;
}

RouteLimits LimitsOf(std::span<const Stage> stages) {
  MESHNET_CHECK(!stages.empty());
  RouteLimits limits;
  bool first = true;
  for (const Stage& stage : stages) {
    const ShardDescription& d = stage.description;
    uint64_t rows = d.limits.chunk_rows_max;
    if (d.limits.frame_bytes_max > 0) {
      const uint64_t room = d.limits.frame_bytes_max > kFrameHeadBytes ? d.limits.frame_bytes_max - kFrameHeadBytes : 0;
      rows = std::max<uint64_t>(1, std::min(rows, room / (sizeof(float) * d.boundary_width)));
    }
    auto lower = [first](uint32_t& limit, uint64_t value) {
      limit = static_cast<uint32_t>(first ? value : std::min<uint64_t>(limit, value));
    };
    lower(limits.context_tokens, d.limits.context_tokens);
    lower(limits.sessions_max, d.limits.sessions_max);
    lower(limits.budget_tokens, d.limits.budget_tokens);
    lower(limits.chunk_rows_max, rows);
    limits.truncation_class = std::max(limits.truncation_class, d.truncation_class,
                                       [](TruncationClass a, TruncationClass b) { return static_cast<int>(a) < static_cast<int>(b); });
    first = false;
  }
  return limits;
}

std::vector<LayerRange> MissingRanges(const std::vector<ShardDescription>& descriptions) {
  std::vector<LayerRange> ranges;
  uint32_t layer_count = 0;
  for (const ShardDescription& d : descriptions) {
    ranges.push_back(d.range);
    layer_count = std::max(layer_count, d.layer_count);
  }
  std::sort(ranges.begin(), ranges.end());
  std::vector<LayerRange> missing;
  uint32_t covered = 0;
  for (const LayerRange& range : ranges) {
    if (range.begin > covered) missing.push_back({covered, range.begin});
    covered = std::max(covered, range.end);
  }
  if (covered < layer_count) missing.push_back({covered, layer_count});
  return missing;
}

}  // namespace meshnet
