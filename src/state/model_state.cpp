#include "trireme/state/model_state.hpp"

#include <algorithm>

#include "trireme/model/tensor_parallel.hpp"

namespace trireme::state {

namespace {

constexpr std::int64_t float_bytes = sizeof(float);

std::int64_t value_bytes(const StateOptions& options) {
  return static_cast<std::int64_t>(size_of(options.values()));
}

/// Where separate sums of some blocks or groups are placed, one after the other.
struct Places {
  std::vector<std::int64_t> first;  // by block or group; −1: it has none
  std::int64_t elements = 0;

  void add(bool separate, std::int64_t size) {
    first.push_back(separate ? elements : -1);
    if (separate) elements += size;
  }
};

/// Of one copy of all rows that are not split, by block.
Places replicated_places(const params::Layout& layout) {
  Places places;
  for (const params::Block& block : layout.blocks()) {
    const auto bytes = static_cast<std::size_t>(block.elements() * float_bytes);
    places.add(block.slices.empty(),
               static_cast<std::int64_t>(device::aligned(bytes)) / float_bytes);
  }
  return places;
}

/// Of the last unit's own sums of weights that are tied on this stage, by group.
Places tied_places(const params::Layout& layout, const StateOptions& options) {
  Places places;
  for (const params::Group& group : layout.groups()) {
    const auto here = std::count_if(group.units.begin(), group.units.end(),
                                    [&](int unit) { return layout.has_unit(unit); });
    places.add(options.shares.reproducible && here > 1, group.elements.size());
  }
  return places;
}

/// Groups that the model's last unit uses: it adds to their gradients in forward, long before they
/// are reduced.
std::vector<bool> of_last_unit(const params::Layout& layout) {
  int last = 0;
  for (const params::Parameter& row : layout.table().rows()) {
    last = std::max(last, row.units.back());
  }
  std::vector<bool> result;
  for (const params::Group& group : layout.groups()) {
    result.push_back(group.units.back() == last && layout.has_unit(last));
  }
  return result;
}

/// `apart`: by group, those that must never be displaced.
GroupBuffers plan_buffers(const params::Layout& layout, const std::vector<bool>& apart) {
  GroupBuffers plan{.count = 2};
  const std::vector<params::Group>& groups = layout.groups();
  const auto alternates = [&](std::size_t g) { return !apart[g] && groups[g].units.size() == 1; };
  std::int64_t largest[2] = {0, 0};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::int64_t& own = largest[groups[g].units.front() % 2];
    if (alternates(g)) own = std::max(own, groups[g].elements.size());
  }
  plan.elements = largest[0] + largest[1];
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (alternates(g)) {
      plan.buffer.push_back(groups[g].units.front() % 2);
      plan.first.push_back(plan.buffer.back() == 0 ? 0 : largest[0]);
    } else {
      plan.buffer.push_back(plan.count++);
      plan.first.push_back(plan.elements);
      plan.elements += groups[g].elements.size();
    }
  }
  return plan;
}

GroupBuffers plan_gradient_buffers(const params::Layout& layout) {
  return plan_buffers(layout, of_last_unit(layout));
}

}  // namespace

ShardMap::ShardMap(const params::Layout& layout, int parts, int index) : parts_(parts) {
  for (const params::Group& group : layout.groups()) {
    const auto same = std::ranges::find_if(kinds_, [&](const Kind& kind) {
      return layout.equivalent(layout.groups()[static_cast<std::size_t>(kind.group)], group);
    });
    if (same != kinds_.end()) {
      ++same->count;
      groups_.push_back({at(same->group).shards, group.elements.begin, {}, 0});
      continue;
    }
    kinds_.push_back({groups(), 1});
    Shards shards{.bounds = params::shard_bounds(layout, group, parts), .counts = {}};
    for (std::size_t part = 0; part + 1 < shards.bounds.size(); ++part) {
      shards.counts.push_back(shards.bounds[part + 1] - shards.bounds[part]);
    }
    groups_.push_back(
        {std::make_shared<const Shards>(std::move(shards)), group.elements.begin, {}, 0});
  }
  place(index);
}

ShardMap ShardMap::of_rank(int index) const {
  ShardMap other = *this;
  other.place(index);
  return other;
}

void ShardMap::place(int index) {
  constexpr std::int64_t alignment = 16;
  index_ = index;
  elements_ = 0;
  const auto i = static_cast<std::size_t>(index);
  for (Group& group : groups_) {
    group.own = {group.begin + group.shards->bounds[i], group.begin + group.shards->bounds[i + 1]};
    group.offset = elements_;
    elements_ += (group.own.size() + alignment - 1) / alignment * alignment;
  }
}

std::vector<params::FlatRange> ShardMap::own_ranges() const {
  std::vector<params::FlatRange> ranges;
  for (const Group& group : groups_) ranges.push_back({group.own, group.offset});
  return ranges;
}

GroupBuffers plan_gather_buffers(const params::Layout& layout, const StateOptions& options) {
  return plan_buffers(layout, std::vector<bool>(layout.groups().size(), options.keeps_gathered));
}

ModelState::Bytes ModelState::bytes(const params::Layout& layout, const ShardMap& shards,
                                    const StateOptions& options) {
  const auto held = [&](bool sharded) { return sharded ? shards.elements() : layout.elements(); };
  Bytes bytes{.parameters = value_bytes(options) * held(options.values_sharded())};
  if (options.has_masters()) bytes.masters = float_bytes * held(options.optimizer_sharded());
  const bool collects = options.train && options.gradients_sharded();
  if (collects) {
    bytes.gradients = float_bytes * shards.elements();
  } else if (options.train) {
    const std::int64_t copies = model::gradient_copies(options.shares) - 1;
    bytes.gradients = float_bytes * options.sets *
                      (layout.elements() + copies * replicated_places(layout).elements +
                       tied_places(layout, options).elements);
  }
  if (options.serves) return bytes;
  if (options.values_sharded()) {
    bytes.gathered += value_bytes(options) * plan_gather_buffers(layout, options).elements;
  }
  if (collects) bytes.gathered += float_bytes * plan_gradient_buffers(layout).elements;
  return bytes;
}

ModelState::ModelState(const params::Layout& layout, const ShardMap& shards,
                       const StateOptions& options, device::MemoryLedger& ledger)
    : layout_(layout), device_(ledger.device()), shards_(shards), options_(options) {
  using device::Use;
  const DType type = options_.values();
  const auto buffer = [&](Use use, std::int64_t size) {
    return device::Buffer(ledger, use, static_cast<std::size_t>(size));
  };
  const Bytes own = bytes(layout_, shards_, options_);
  const std::int64_t elements = values_sharded() ? shards_.elements() : layout_.elements();
  value_memory_ = buffer(Use::parameters, own.parameters);
  stored_values_ = value_memory_.view(type, {elements});
  if (options_.has_masters()) {
    master_memory_ = device::Buffer(ledger, options_.offloaded() ? Use::offloaded : Use::optimizer,
                                    static_cast<std::size_t>(own.masters), optimizer_device());
    masters_ = master_memory_.view(DType::f32, {own.masters / float_bytes});
  }
  gradient_memory_ = buffer(Use::gradients, own.gradients);
  if (options_.serves) {
    gradients_ = gradient_memory_.view(DType::f32, {shards_.elements()});
    return;
  }
  if (values_sharded()) {
    gather_buffers_ = plan_gather_buffers(layout_, options_);
    gathered_memory_ = buffer(Use::gathered, value_bytes(options_) * gather_buffers_.elements);
    gathered_ = gathered_memory_.view(type, {gather_buffers_.elements});
  }
  values_ = views_of([&](int g) { return group_values(g); });
  if (options_.train) make_gradients(ledger);
}

std::vector<Tensor> ModelState::communicated() const {
  std::vector<Tensor> result;
  for (const auto* memory :
       {&value_memory_, &gathered_memory_, &gradient_memory_, &collected_memory_}) {
    if (memory->data() == nullptr) continue;  // on no rank
    result.push_back(memory->view(DType::u8, {static_cast<std::int64_t>(memory->bytes())}));
  }
  return result;
}

model::ParameterViews ModelState::views_of(const std::function<Tensor(int)>& whole) const {
  model::ParameterViews views(layout_.table().rows().size());
  int number = 0;
  for (const params::Group& group : layout_.groups()) {
    const Tensor values = whole(number++);
    for (std::int64_t b = group.blocks.begin; b < group.blocks.end; ++b) {
      const params::Block& block = layout_.blocks()[static_cast<std::size_t>(b)];
      const std::int64_t begin = block.offset - group.elements.begin;
      views.of(block.row).push_back(
          values.slice(0, begin, begin + block.elements()).reshape(block.shape));
    }
  }
  return views;
}

void ModelState::make_gradients(device::MemoryLedger& ledger) {
  using device::Use;
  const Places replicated = replicated_places(layout_), tied = tied_places(layout_, options_);
  copies_ = model::gradient_copies(options_.shares);
  replicated_ = replicated.first;
  tied_ = tied.first;
  Tensor collected;
  if (gradients_sharded()) {
    gradient_buffers_ = plan_gradient_buffers(layout_);
    collected_memory_ = device::Buffer(
        ledger, Use::gathered, static_cast<std::size_t>(gradient_buffers_.elements * float_bytes));
    collected = collected_memory_.view(DType::f32, {gradient_buffers_.elements});
    gradients_ = gradient_memory_.view(DType::f32, {shards_.elements()});
    other_sums_ = {gradients_};
  }
  std::int64_t offset = 0;
  const auto take = [&](const Shape& shape) {
    if (shape.elements() == 0) return Tensor();
    const Tensor part =
        gradient_memory_.view(DType::f32, shape, static_cast<std::size_t>(offset * float_bytes));
    offset += shape.elements();
    return part;
  };
  const auto take_other = [&](const Shape& shape) {
    const Tensor part = take(shape);
    if (part) other_sums_.push_back(part.reshape({part.elements()}));
    return part;
  };
  sets_.resize(static_cast<std::size_t>(options_.sets));
  for (Set& set : sets_) {
    set.flat = gradients_sharded() ? collected : take({layout_.elements()});
    if (!gradients_sharded()) {
      set.copies = take_other({copies_ - 1, replicated.elements});
      set.tied = take_other({tied.elements});
    }
  }
  if (!gradients_sharded()) gradients_ = sets_.front().flat;
  for (int s = 0; s < options_.sets; ++s) {
    Set& set = sets_[static_cast<std::size_t>(s)];
    for (const bool last : {false, true}) {
      model::ParameterViews& views = last ? set.last_views : set.views;
      views = views_of([&](int g) {
        const Tensor own_sum = last ? tied_gradient(g, s) : Tensor();
        return own_sum ? own_sum : group_gradient(g, s);
      });
      for (std::size_t b = 0; b < layout_.blocks().size(); ++b) {
        const params::Block& block = layout_.blocks()[b];
        for (int copy = 0; block.slices.empty() && copy + 1 < copies_; ++copy) {
          views.of(block.row).push_back(gradient_copy(static_cast<int>(b), s, copy));
        }
      }
    }
  }
}

const model::ParameterViews& ModelState::gradients(int set, bool last_unit) const {
  static const model::ParameterViews none;
  if (sets_.empty()) return none;
  const Set& chosen = sets_[static_cast<std::size_t>(set)];
  return last_unit ? chosen.last_views : chosen.views;
}

Tensor ModelState::group_values(int group) const {
  const params::Range& elements = layout_.groups()[static_cast<std::size_t>(group)].elements;
  if (!values_sharded()) return stored_values_.slice(0, elements.begin, elements.end);
  const std::int64_t first = gather_buffers_.first[static_cast<std::size_t>(group)];
  return gathered_.slice(0, first, first + elements.size());
}

Tensor ModelState::own_part(const Tensor& flat, int group, bool sharded) const {
  const params::Range& own = shards_.own(group);
  if (!sharded) return flat.slice(0, own.begin, own.end);
  return flat.slice(0, shards_.offset(group), shards_.offset(group) + own.size());
}

Tensor ModelState::own_values(int group) const {
  return own_part(stored_values_, group, values_sharded());
}

Tensor ModelState::own_parameters(int group) const {
  return own_part(parameters(), group, parameters_sharded());
}

Tensor ModelState::flat_gradients(int set) const {
  return sets_[static_cast<std::size_t>(set)].flat;
}

Tensor ModelState::group_gradient(int group, int set) const {
  const params::Range& elements = layout_.groups()[static_cast<std::size_t>(group)].elements;
  const Tensor flat = flat_gradients(set);
  if (!gradients_sharded()) return flat.slice(0, elements.begin, elements.end);
  const std::int64_t first = gradient_buffers_.first[static_cast<std::size_t>(group)];
  return flat.slice(0, first, first + elements.size());
}

Tensor ModelState::own_gradient(int group) const {
  return own_part(gradients_, group, gradients_sharded());
}

Tensor ModelState::gradient_copy(int block, int set, int copy) const {
  const auto b = static_cast<std::size_t>(block);
  const Tensor& copies = sets_[static_cast<std::size_t>(set)].copies;
  const std::int64_t place = replicated_[b];
  const Tensor row = copies.slice(0, copy, copy + 1).reshape({copies.extent(1)});
  return row.slice(0, place, place + layout_.blocks()[b].elements())
      .reshape(layout_.blocks()[b].shape);
}

Tensor ModelState::tied_gradient(int group, int set) const {
  const std::int64_t place = tied_.empty() ? -1 : tied_[static_cast<std::size_t>(group)];
  if (place < 0) return {};
  const std::int64_t elements = layout_.groups()[static_cast<std::size_t>(group)].elements.size();
  return sets_[static_cast<std::size_t>(set)].tied.slice(0, place, place + elements);
}

}  // namespace trireme::state
