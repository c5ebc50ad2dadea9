#include "trireme/parallel/step_graphs.hpp"

#include "trireme/core/error.hpp"
#include "trireme/device/cuda.hpp"

namespace trireme::parallel {

StepGraphs::StepGraphs(device::MemoryLedger& ledger, bool wanted)
    : ledger_(ledger), device_(wanted && ledger.device().captures() ? &ledger.device() : nullptr) {}

void StepGraphs::forget() {
  steps_.clear();
  current_ = nullptr;
}

void StepGraphs::begin_step(const Pattern& pattern) {
  if (!active()) return;
  if (current_ != nullptr) current_->queued = true;
  const auto known = steps_.find(pattern);
  if (known != steps_.end()) {
    current_ = &known->second;
  } else {
    current_ = steps_.size() < most_patterns ? &steps_[pattern] : nullptr;
  }
}

void StepGraphs::queue(std::size_t number, const Work& work) {
  if (current_ == nullptr || !current_->queued) return work(nullptr);
  const std::uint64_t added = ledger_.times_added(device::Use::workspace);
  if (added != added_) {
    for (auto& [known, step] : steps_) step.graphs.clear();
  }
  added_ = added;
  std::unique_ptr<device::GraphSequence>& graphs = current_->graphs[number];
  if (graphs == nullptr) {
    try {
      graphs = std::make_unique<device::GraphSequence>(*device_);
      graphs->capture([&] { work(graphs.get()); });
      captured_ += graphs->graphs();
    } catch (const Error& error) {
      // Nothing was executed. Graphs that were launched keep their resources until they end.
      refusal_ = error.what();
      device_ = nullptr;
      forget();
      return work(nullptr);
    }
  }
  const device::Range range("launch of graphs");
  graphs->launch();
  launched_ += graphs->graphs();
}

}  // namespace trireme::parallel
