// llama.cpp's test models have two layers: too few for windows, steps and cuts in the middle. This writes one with its layers repeated.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace meshnet::parity {

// The same model with `layers` layers: its own in turn; only the last one is repeated when the first ones are dense by a key of their own.
Status DeepenModel(const std::string& path, uint32_t layers, const std::string& out_path);

}  // namespace meshnet::parity
