#include "gguf/model_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "gguf/header_file.h"
#include "gguf/part_header.h"
#include "gguf/split_name.h"

namespace meshnet::gguf {
namespace {

constexpr char kSplitNumber[] = "split.no";
constexpr char kSplitCount[] = "split.count";
constexpr char kSplitTensors[] = "split.tensors.count";
constexpr int64_t kPartCountMax = 4096;

struct SplitPlace {
  int64_t number = 0;            // from 0
  int64_t count = 0;             // 0: not split
  int64_t tensors = 0;           // of the whole set
};

Result<SplitPlace> ReadSplitPlace(const PartHeader& header) {
  SplitPlace place;
  const auto read = [&header](const char* key, int64_t* value) {
    const MetadataEntry* entry = header.Find(key);
    const std::optional<int64_t> found = entry == nullptr ? std::nullopt : entry->Integer();
    if (found.has_value()) *value = *found;
    return entry == nullptr || found.has_value();
  };
  if (!read(kSplitNumber, &place.number) || !read(kSplitCount, &place.count) || !read(kSplitTensors, &place.tensors) || place.count < 0 ||
      place.count > kPartCountMax || (place.count > 0 && (place.number < 0 || place.number >= place.count))) {
    return BadModel(header.part.path + ": its split.* keys make no sense: split.no " + std::to_string(place.number) + ", split.count " +
                    std::to_string(place.count));
  }
  if (place.count <= 1) place.count = 0;
  return place;
}

std::string PartOf(int64_t number, int64_t count) { return "part " + std::to_string(number + 1) + " of " + std::to_string(count); }

// Parts that somebody joined with `cat` leave a second GGUF behind the data of the first.
bool HoldsAnotherFile(const PartHeader& header) {
  if (header.part.bytes < header.data_end + 4) return false;
  const int descriptor = open(header.part.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  char magic[4] = {};
  const bool found = pread(descriptor, magic, sizeof(magic), static_cast<off_t>(header.data_end)) == 4 && std::string_view(magic, 4) == "GGUF";
  close(descriptor);
  return found;
}

Status JoinedParts(const PartHeader& header) {
  return BadModel(header.part.path + ": at offset " + std::to_string(header.data_end) +
                  ": another GGUF begins behind the data of the first: the parts were joined with cat; use llama-gguf-split --merge, or name "
                  "part 1 of the set");
}

Status CheckPart(const PartHeader& header, const SplitPlace& first, int64_t number) {
  Result<SplitPlace> place = ReadSplitPlace(header);
  if (!place.ok()) return place.status();
  const std::string& path = header.part.path;
  if (place->count == 0) return BadModel(path + ": should be " + PartOf(number, first.count) + ", but is a file of its own (no split.count)");
  if (place->count != first.count || place->number != number) {
    return BadModel(path + ": should be " + PartOf(number, first.count) + ", but says that it is " + PartOf(place->number, place->count) +
                    ": parts were renamed or mixed");
  }
  if (place->tensors != first.tensors) {
    return BadModel(path + ": is a part of another model: its set has " + std::to_string(place->tensors) + " tensors, that of part 1 has " +
                    std::to_string(first.tensors));
  }
  if (HoldsAnotherFile(header)) return JoinedParts(header);
  return OkStatus();
}

// All parts of the set that `named` belongs to, in order.
Result<std::vector<PartHeader>> ReadSet(PartHeader named, const SplitPlace& place) {
  const std::string typed = named.part.path;
  const std::optional<SplitName> name = ParseSplitName(typed);
  const std::string said = "it says that it is " + PartOf(place.number, place.count);
  if (!name.has_value()) {
    if (HoldsAnotherFile(named)) return JoinedParts(named);
    return BadModel(typed + ": " + said + ", but its name does not end in " +
                    FormatSplitName("", static_cast<uint32_t>(place.number + 1), static_cast<uint32_t>(place.count)) +
                    ", so the other parts cannot be found: give the parts their names back, or name part 1");
  }
  if (name->number != place.number + 1 || name->count != place.count) {
    return BadModel(typed + ": " + said + ", but its name says part " + std::to_string(name->number) + " of " + std::to_string(name->count) +
                    ": the part was renamed");
  }
  std::vector<PartHeader> parts;
  SplitPlace first = place;
  for (int64_t number = 0; number < place.count; ++number) {
    if (number == place.number) {
      parts.push_back(std::move(named));
    } else {
      const std::string path = FormatSplitName(name->prefix, static_cast<uint32_t>(number + 1), static_cast<uint32_t>(place.count));
      if (access(path.c_str(), F_OK) != 0) return BadModel(path + ": " + PartOf(number, place.count) + " is missing (" + typed + " needs it)");
      Result<PartHeader> header = ReadPartHeader(path);
      if (!header.ok()) return header.status();
      parts.push_back(std::move(header).value());
    }
    if (number == 0) {
      Result<SplitPlace> own = ReadSplitPlace(parts[0]);
      if (!own.ok()) return own.status();
      first.tensors = own->tensors;
    }
    if (Status status = CheckPart(parts.back(), first, number); !status.ok()) return status;
  }
  return parts;
}

}  // namespace

Result<ModelFile> ModelFile::Open(const std::string& path) {
  try {
    Result<PartHeader> named = ReadPartHeader(path);
    if (!named.ok()) return named.status();
    Result<SplitPlace> place = ReadSplitPlace(*named);
    if (!place.ok()) return place.status();
    std::vector<PartHeader> headers;
    if (place->count == 0) {
      if (HoldsAnotherFile(*named)) return JoinedParts(*named);
      headers.push_back(std::move(named).value());
    } else {
      Result<std::vector<PartHeader>> set = ReadSet(std::move(named).value(), *place);
      if (!set.ok()) return set.status();
      headers = std::move(set).value();
    }
    ModelFile file;
    file.path_ = path;
    if (Status status = file.Join(&headers); !status.ok()) return status;
    if (place->count != 0 && static_cast<int64_t>(file.tensors_.size()) != place->tensors) {
      return BadModel(path + ": the parts hold " + std::to_string(file.tensors_.size()) + " tensors, but the set says " +
                      std::to_string(place->tensors) + ": a part belongs to another model");
    }
    return file;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path + ": not enough memory to read its header");
  }
}

Status ModelFile::Join(std::vector<PartHeader>* headers) {
  alignment_ = (*headers)[0].alignment;
  for (MetadataEntry& entry : (*headers)[0].metadata) {
    if (!entry.key.starts_with("split.")) metadata_.push_back(std::move(entry));
  }
  for (size_t part = 0; part < headers->size(); ++part) {
    parts_.push_back((*headers)[part].part);
    for (TensorInfo& tensor : (*headers)[part].tensors) {
      tensor.part = static_cast<uint32_t>(part);
      tensors_.push_back(std::move(tensor));
    }
  }
  by_name_.resize(tensors_.size());
  for (uint32_t i = 0; i < by_name_.size(); ++i) by_name_[i] = i;
  std::sort(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
    return tensors_[a].name != tensors_[b].name ? tensors_[a].name < tensors_[b].name : a < b;
  });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const TensorInfo& one = tensors_[by_name_[i - 1]];
    const TensorInfo& other = tensors_[by_name_[i]];
    if (one.name == other.name) {
      return BadModel(parts_[other.part].path + ": tensor \"" + Printable(other.name) + "\" is in " + parts_[one.part].path +
                      " too: the part belongs to another set");
    }
  }
  return OkStatus();
}

const MetadataEntry* ModelFile::Find(std::string_view key) const {
  for (const MetadataEntry& entry : metadata_) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

const TensorInfo* ModelFile::FindTensor(std::string_view name) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [this](uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
  return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

std::string ModelFile::String(std::string_view key, std::string_view fallback) const {
  const MetadataEntry* entry = Find(key);
  return entry == nullptr || entry->type != ValueType::kString ? std::string(fallback) : entry->strings[0];
}

std::optional<int64_t> ModelFile::Integer(std::string_view key) const {
  const MetadataEntry* entry = Find(key);
  return entry == nullptr || entry->type == ValueType::kArray ? std::nullopt : entry->Integer();
}

}  // namespace meshnet::gguf
