// Parts of a run's record that every method's has.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/data/dataset.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/report/record.hpp"
#include "trireme/train/config.hpp"

namespace trireme::train {

nlohmann::json memory_json(const std::vector<report::MemoryRow>& rows);
/// Bytes by the use's name.
nlohmann::json prediction_json(const std::map<device::Use, std::int64_t>& predicted);
/// Tokens of both splits and the samples in them that one epoch, and one evaluation, sees.
nlohmann::json dataset_json(const data::Dataset& dataset, const RunConfig& config);
/// By group: the most that a rank sent per step and the least that one had to, in bytes, the means
/// over ranks of both, and the most seconds of a rank; each where some rank sent anything.
nlohmann::json communication_of(const std::vector<nlohmann::json>& ranks);

}  // namespace trireme::train
