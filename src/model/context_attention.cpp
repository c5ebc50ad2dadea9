// Long because forward and backward of an exchange share its shapes.
// Attention where a sequence's tokens are on several ranks (ContextPart). A call of attention has
// one chunk of queries and one of keys, and only calls that see something are made; each rank has
// as many, since it has as many tokens from the end of a sequence as from its beginning
// (Grattafiori et al., "The Llama 3 herd of models", 2024, section 3.3.2). Keys and values come to
// the rank in blocks: its own, then those of all other ranks at once, or one rank's after the other
// around a ring (Liu et al., "Ring attention", 2023). A block is in flight while the one before it
// is computed.
//
// Results are merged by their log-sum-exps (Dao et al., "FlashAttention", 2022, section 3.1) in
// fp32. Backward takes the final log-sum-exp, so that its calls are independent. In reproducible
// mode results, and gradients for queries, are added in a balanced tree over chunks of keys; those
// for keys over the two chunks of a pair and then in a tree over pairs, which the sum over ranks
// continues. Neither depends on the order of blocks.
#include <algorithm>
#include <bit>

#include "trireme/model/block.hpp"

namespace trireme::model {

namespace {

/// `rows` rows of x [R, width] from row `begin` on, and `count` heads from column `first` on, as
/// [1, rows, count, D].
Tensor heads_of_rows(const Tensor& x, const params::Range& rows, std::int64_t first,
                     std::int64_t count, std::int64_t head_size) {
  const std::int64_t row = x.stride(0);
  const std::size_t offset = static_cast<std::size_t>(rows.begin * row + first) * size_of(x.type());
  return {static_cast<std::byte*>(x.data()) + offset,
          x.type(),
          {1, rows.size(), count, head_size},
          {rows.size() * row, row, head_size, 1}};
}

Tensor flat(const Tensor& x) { return x.reshape({x.elements()}); }

Tensor rows_of(const Tensor& x, const params::Range& rows) {
  return x.slice(0, rows.begin, rows.end);
}

/// Keys and values that come to a rank together: of these pairs, at (pair − base) of a buffer.
struct KeyBlock {
  int base = 0;
  std::vector<params::Range> pairs;
  /// Chunks of a sequence's keys, in ascending order.
  std::vector<std::int64_t> chunks(std::int64_t all) const {
    std::vector<std::int64_t> numbers;
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) numbers.push_back(i);
    };
    for (const params::Range& range : pairs) add(range.begin, range.end);
    for (auto range = pairs.rbegin(); range != pairs.rend(); ++range) {
      add(all - range->end, all - range->begin);
    }
    return numbers;
  }
};

/// In the order in which they come; the rank's own first.
std::vector<KeyBlock> blocks_of(const ContextPart& part, bool ring) {
  const auto of_pairs = [](std::int64_t begin, std::int64_t count) {
    return params::Range{begin, begin + count};
  };
  const int ranks = part.ranks(), own = part.first / part.count;
  std::vector<KeyBlock> blocks = {{ring ? part.first : 0, {of_pairs(part.first, part.count)}}};
  if (ring) {
    for (int step = 1; step < ranks; ++step) {
      const int first = (own - step + ranks) % ranks * part.count;
      blocks.push_back({first, {of_pairs(first, part.count)}});
    }
  } else if (ranks > 1) {
    const int end = part.first + part.count;
    blocks.push_back({0, {of_pairs(0, part.first), of_pairs(end, part.pairs - end)}});
  }
  return blocks;
}

/// Results of calls for one chunk of queries, which are added up as they come: as a tree over all
/// chunks of keys, which may come in any order, or one after the other.
class Results {
 public:
  /// Of keys in chunks [0, seen) of `all`, a power of two where they are a tree.
  Results(bool tree, std::int64_t seen, std::int64_t all) : tree_(tree), seen_(seen), all_(all) {}

  /// The first slot that holds no result.
  int free_slot() const {
    int slot = 0;
    while (std::ranges::find(parts_, slot, &Part::slot) != parts_.end()) ++slot;
    return slot;
  }
  /// The result for chunk `number` is in `slot`: calls add(to, from) for sums that are known now.
  template <class Add>
  void put(std::int64_t number, int slot, const Add& add) {
    if (!tree_ && !parts_.empty()) return add(parts_.front().slot, slot);
    Part part{number, 1, slot};
    while (tree_ && part.size < all_) {
      const bool first = part.begin / part.size % 2 == 0;
      const std::int64_t other = first ? part.begin + part.size : part.begin - part.size;
      if (other >= seen_) {
        part.size *= 2;
        continue;
      }
      const auto found = std::ranges::find_if(
          parts_, [&](const Part& p) { return p.begin == other && p.size == part.size; });
      if (found == parts_.end()) break;
      const int to = first ? part.slot : found->slot, from = first ? found->slot : part.slot;
      add(to, from);
      part = {std::min(part.begin, other), 2 * part.size, to};
      parts_.erase(found);
    }
    parts_.push_back(part);
  }
  /// Of the whole result, after all.
  int slot() const {
    TRIREME_ASSERT(parts_.size() == 1, "{} parts of a result", parts_.size());
    return parts_.front().slot;
  }

 private:
  struct Part {
    std::int64_t begin, size;  // chunks
    int slot;
  };
  bool tree_;
  std::int64_t seen_, all_;
  std::vector<Part> parts_;
};

/// Slots that the results of one chunk of this rank take.
std::size_t slots_of(const Shares& shares) {
  const ContextPart& part = shares.context;
  const std::int64_t all = std::int64_t{2} * part.pairs;
  int most = 0;
  for (int pair = part.first; pair < part.first + part.count; ++pair) {
    for (const int half : {0, 1}) {
      const std::int64_t seen = part.chunk(pair, half) + 1;
      Results results(shares.reproducible, seen, all);
      for (const KeyBlock& block : blocks_of(part, shares.ring)) {
        for (const std::int64_t number : block.chunks(all)) {
          if (number >= seen) break;
          const int slot = results.free_slot();
          most = std::max(most, slot + 1);
          results.put(number, slot, [](int, int) {});
        }
      }
    }
  }
  return static_cast<std::size_t>(most);
}

}  // namespace

/// One tile of heads of this rank's pairs of chunks of the same sequences.
class Attention::Exchange {
 public:
  Exchange(const Attention& attention, std::span<const UnitContext* const> pairs, std::size_t tile)
      : attention_(attention),
        pairs_(pairs),
        tile_(tile),
        first_(*pairs.front()),
        part_(first_.shares.context),
        heads_(heads_of_tile(attention.heads_, attention.kv_heads_, first_.shares.tiles,
                             static_cast<int>(tile))),
        chunk_(first_.batch.length / 2),
        width_(2 * heads_.key.size() * attention.head_size_) {
    for (int local = 0; local < part_.count; ++local) {
      for (std::int64_t i = 0; i < 2 * first_.batch.sequences; ++i) {
        results_.emplace_back(first_.shares.reproducible,
                              part_.chunk(part_.first + local, static_cast<int>(i % 2)) + 1,
                              all_chunks());
      }
    }
  }

  void attend() {
    for_each_block([&](const KeyBlock& block, const Tensor& keys) {
      for_each_chunk([&](const Chunk& chunk) {
        for (const std::int64_t number : block.chunks(all_chunks())) {
          if (number <= chunk.last) add_result(chunk, number, keys_of(chunk, block, keys, number));
        }
      });
    });
    for_each_chunk([&](const Chunk& chunk) {
      const int slot = chunk.results.slot();
      ops().copy(chunk.rows(chunk.context.full(attention_.middle_[tile_])), result(chunk, slot));
      ops().copy(flat(chunk.log_sums), flat(sums(chunk, slot)));
    });
  }

  void attend_backward() {
    for_each_block([&](const KeyBlock& block, const Tensor& keys) {
      sum_pairs(block, keys, {0, part_.count}, 0);
    });
    for_each_chunk([&](const Chunk& chunk) {
      const Tensor dqkv = chunk.rows(chunk.context.full(attention_.dfirst_[tile_]));
      ops().copy(dqkv.slice(1, 0, dqkv.extent(1) - width_), result(chunk, chunk.results.slot()));
    });
    reduce();
  }

 private:
  /// A chunk of queries.
  struct Chunk {
    const UnitContext& context;
    Results& results;
    std::int64_t sequence;  // of the leaf
    int half;
    params::Range own;    // rows of its pair
    std::int64_t last;    // its number in the sequence: of keys it sees no later ones
    std::int64_t common;  // keys that the first chunk of its pair sees too
    Tensor log_sums;      // [1, Hv, rows]
    Tensor rows(const Tensor& x) const { return rows_of(x, own); }
  };
  /// A chunk of keys for it.
  struct Keys {
    const Tensor& all;
    params::Range rows;    // of `all`
    params::Range tokens;  // of the sequence
  };

  ops::Ops& ops() const { return first_.ops; }
  std::int64_t all_chunks() const { return std::int64_t{2} * part_.pairs; }
  bool ring() const { return first_.shares.ring; }

  template <class Visit>
  void for_each_chunk_of(int local, const Visit& visit) {
    const UnitContext& context = *pairs_[static_cast<std::size_t>(local)];
    const int pair = part_.first + local;
    for (std::int64_t sequence = 0; sequence < context.batch.sequences; ++sequence) {
      for (const int half : {0, 1}) {
        const std::int64_t number = 2 * sequence + half, begin = number * chunk_;
        const params::Range own{begin, begin + chunk_};
        const Tensor lse = rows_of(context.full(attention_.lse_[tile_]), own);
        visit(Chunk{
            context,
            results_[static_cast<std::size_t>(2 * local * context.batch.sequences + number)],
            sequence, half, own, part_.chunk(pair, half), half == 0 ? 0 : part_.chunk(pair, 0) + 1,
            lse.reshape({1, heads_.query.size(), chunk_})});
      }
    }
  }
  template <class Visit>
  void for_each_chunk(const Visit& visit) {
    for (int local = 0; local < part_.count; ++local) for_each_chunk_of(local, visit);
  }

  // Memory of all pairs, in the first call's scratch: rows by pair, sequence and half.
  std::int64_t rows_of_pairs(std::int64_t pairs) const { return pairs * first_.batch.tokens(); }
  std::int64_t rows_of_buffer() const { return rows_of_pairs(ring() ? part_.count : part_.pairs); }
  Tensor exchanged(const Slot& slot, std::int64_t rows) const {
    const Tensor all = first_.memory.view(slot, rows);
    return {all.data(), all.type(), {rows, width_}};
  }
  Tensor buffer(std::size_t number) const {
    const std::int64_t rows = rows_of_buffer(), begin = static_cast<std::int64_t>(number) * rows;
    return exchanged(attention_.keys_, ring() ? 2 * rows : rows).slice(0, begin, begin + rows);
  }
  Tensor all_dkeys() const { return exchanged(attention_.all_dkeys_, rows_of_pairs(part_.pairs)); }
  /// Rows of chunk `number` of a sequence's keys in a buffer that begins with pair `base`.
  params::Range place_of(std::int64_t number, std::int64_t sequence, int base) const {
    const bool first = number < part_.pairs;
    const std::int64_t pair = first ? number : all_chunks() - 1 - number;
    const std::int64_t begin =
        rows_of_pairs(pair - base) + (2 * sequence + (first ? 0 : 1)) * chunk_;
    return {begin, begin + chunk_};
  }
  Keys keys_of(const Chunk& chunk, const KeyBlock& block, const Tensor& keys,
               std::int64_t number) const {
    return {keys,
            place_of(number, chunk.sequence, block.base),
            {number * chunk_, (number + 1) * chunk_}};
  }

  // Memory of a pair, in its call's scratch.
  Tensor of_chunk(const Chunk& chunk, const Slot& slot) const {
    const Tensor all = chunk.context.full(slot);
    const Shape shape{all.extent(0), heads_.query.size() * attention_.head_size_};
    return chunk.rows(Tensor(all.data(), all.type(), shape));
  }
  /// [rows, Hv·D] and [1, Hv, rows], fp32.
  Tensor result(const Chunk& chunk, int slot) const {
    return of_chunk(chunk, attention_.results_[static_cast<std::size_t>(slot)]);
  }
  Tensor sums(const Chunk& chunk, int slot) const {
    const Tensor all = chunk.context.full(attention_.sums_[static_cast<std::size_t>(slot)]);
    const Tensor packed(all.data(), all.type(), {all.extent(0), heads_.query.size()});
    return chunk.rows(packed).reshape({1, heads_.query.size(), chunk_});
  }

  /// The columns k|v of q|k|v.
  Tensor key_columns(const Tensor& qkv) const {
    return qkv.slice(1, qkv.extent(1) - width_, qkv.extent(1));
  }

  /// visit(block, buffer) as blocks come.
  template <class Visit>
  void for_each_block(const Visit& visit) {
    const std::vector<KeyBlock> blocks = blocks_of(part_, ring());
    for (int local = 0; local < part_.count; ++local) {
      const UnitContext& context = *pairs_[static_cast<std::size_t>(local)];
      const std::int64_t begin = rows_of_pairs(part_.first + local - blocks.front().base);
      ops().copy(rows_of(buffer(0), {begin, begin + rows_of_pairs(1)}),
                 key_columns(context.full(attention_.first_[tile_])));
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t here = ring() ? i % 2 : 0;
      device::Event next;
      if (i + 1 < blocks.size()) next = ring() ? pass(buffer(here), buffer(1 - here)) : gather();
      visit(blocks[i], buffer(here));
      next.wait();
    }
  }

  /// Sends a block to the next rank and receives one from the rank before.
  device::Event pass(const Tensor& from, const Tensor& to) const {
    return start_collective(
        first_, [&group = *first_.tensor.context, &stream = first_.tensor.stream, from, to] {
          const int ranks = group.size(), next = (group.rank() + 1) % ranks,
                    before = (group.rank() + ranks - 1) % ranks;
          return group.exchange({{flat(from), next, true}, {flat(to), before, false}}, stream);
        });
  }

  device::Event gather() const {
    return of_all(buffer(0), [](comm::Communicator& group, const Tensor& whole, const Tensor& own,
                                const std::vector<std::int64_t>& counts, device::Stream& stream) {
      return group.all_gather_v(whole, own, counts, stream);
    });
  }

  /// Starts `operation` on all pairs' rows, of which each rank's own are its part.
  template <class Operation>
  device::Event of_all(const Tensor& all, Operation operation) const {
    comm::Communicator& group = *first_.tensor.context;
    const std::int64_t rows = rows_of_pairs(part_.count);
    const Tensor own = all.slice(0, rows * group.rank(), rows * (group.rank() + 1));
    return start_collective(first_, [&group, &stream = first_.tensor.stream, operation,
                                     whole = flat(all), part = flat(own),
                                     counts = std::vector<std::int64_t>(
                                         static_cast<std::size_t>(group.size()), rows * width_)] {
      return operation(group, whole, part, counts, stream);
    });
  }

  ops::AttentionMask mask_of(const Chunk& chunk, const params::Range& keys) const {
    const Microbatch& batch = chunk.context.batch;
    const auto of_sequence = [&](const Tensor& x, const params::Range& tokens) {
      if (!x) return Tensor();
      return x.slice(0, chunk.sequence, chunk.sequence + 1).slice(1, tokens.begin, tokens.end);
    };
    const params::Range queries{chunk.half * chunk_, (chunk.half + 1) * chunk_};
    // All keys of an earlier chunk of the same document are before all queries.
    return {.causal = keys.end > chunk.last * chunk_,
            .query_positions = of_sequence(batch.positions, queries),
            .key_positions = of_sequence(batch.key_positions, keys),
            .query_documents = of_sequence(batch.documents, queries),
            .key_documents = of_sequence(batch.key_documents, keys)};
  }
  Tensor query_heads(const Tensor& x, const params::Range& rows) const {
    return heads_of_rows(x, rows, 0, heads_.query.size(), attention_.head_size_);
  }
  Tensor query_heads(const Tensor& x) const { return query_heads(x, {0, x.extent(0)}); }
  /// Keys, or with `values` values, of rows of k|v.
  Tensor key_heads(const Tensor& x, const params::Range& rows, bool values) const {
    return heads_of_rows(x, rows, values ? width_ / 2 : 0, heads_.key.size(),
                         attention_.head_size_);
  }

  void add_result(const Chunk& chunk, std::int64_t number, const Keys& keys) const {
    const Tensor qkv = chunk.context.full(attention_.first_[tile_]);
    const int slot = chunk.results.free_slot();
    const Tensor out = result(chunk, slot);
    const bool narrow = out.type() != qkv.type();
    const Tensor to = narrow ? of_chunk(chunk, attention_.piece_) : out;
    ops().attention(query_heads(to), sums(chunk, slot), query_heads(qkv, chunk.own),
                    key_heads(keys.all, keys.rows, false), key_heads(keys.all, keys.rows, true),
                    mask_of(chunk, keys.tokens), attention_.scale_, {}, chunk.context.batch.samples,
                    attention_.slice(heads_));
    if (narrow) ops().copy(out, to);
    const auto by_head = [&](const Tensor& x) {
      return x.reshape({chunk_, heads_.query.size(), attention_.head_size_});
    };
    const auto of_heads = [&](int i) {
      return sums(chunk, i).reshape({heads_.query.size(), chunk_});
    };
    chunk.results.put(number, slot, [&](int sum, int other) {
      ops().merge_attention(by_head(result(chunk, sum)), of_heads(sum),
                            by_head(result(chunk, other)), of_heads(other));
    });
  }

  /// Gradients for a block's keys of a tree's node over this rank's pairs; with base as in a
  /// KeyBlock.
  struct Gradients {
    Tensor rows;
    int base;
  };
  Gradients gradients(const KeyBlock& block, int level) const {
    if (level == 0) return {all_dkeys(), 0};
    const Slot& slot = attention_.dkeys_[static_cast<std::size_t>(level - 1)];
    return {exchanged(slot, rows_of_buffer()), block.base};
  }

  /// The gradients of `level` = Σ over this rank's pairs `local`; and those for their queries.
  void sum_pairs(const KeyBlock& block, const Tensor& keys, const params::Range& local, int level) {
    const Gradients sum = gradients(block, level);
    if (local.size() == 1) {
      return for_each_chunk_of(static_cast<int>(local.begin),
                               [&](const Chunk& chunk) { add_gradients(chunk, block, keys, sum); });
    }
    const std::int64_t middle = local.begin + local.size() / 2;
    sum_pairs(block, keys, {local.begin, middle}, level);
    sum_pairs(block, keys, {middle, local.end}, level + 1);
    const Gradients other = gradients(block, level + 1);
    for (const params::Range& pairs : block.pairs) {
      if (pairs.size() == 0) continue;
      const auto rows = [&](const Gradients& x) {
        return flat(rows_of(
            x.rows, {rows_of_pairs(pairs.begin - x.base), rows_of_pairs(pairs.end - x.base)}));
      };
      ops().add(rows(sum), rows(sum), rows(other));
    }
  }

  void add_gradients(const Chunk& chunk, const KeyBlock& block, const Tensor& keys,
                     const Gradients& sum) const {
    for (const std::int64_t number : block.chunks(all_chunks())) {
      const Tensor to = rows_of(sum.rows, place_of(number, chunk.sequence, sum.base));
      if (number <= chunk.last) {
        add_gradients(chunk, number, keys_of(chunk, block, keys, number), to);
      } else if (chunk.half == 1) {  // which sees all that the first chunk sees
        ops().fill(to, 0);
      }
    }
  }

  /// The first chunk's gradients for keys are written, and the last one's added to them.
  void add_gradients(const Chunk& chunk, std::int64_t number, const Keys& keys,
                     const Tensor& to) const {
    const UnitContext& context = chunk.context;
    const Tensor qkv = context.full(attention_.first_[tile_]);
    const int slot = chunk.results.free_slot();
    const Tensor dq = result(chunk, slot);
    const bool narrow = dq.type() != qkv.type();
    const Tensor to_dq = narrow ? of_chunk(chunk, attention_.piece_) : dq;
    const bool added = number < chunk.common, at_once = !added && to.type() == qkv.type();
    const Tensor dkeys = at_once ? to : exchanged(attention_.dpiece_, chunk_);
    const params::Range all{0, chunk_};
    ops().attention_backward(
        query_heads(to_dq), key_heads(dkeys, all, false), key_heads(dkeys, all, true),
        query_heads(context.full(attention_.dmiddle_[tile_]), chunk.own),
        query_heads(context.full(attention_.middle_[tile_]), chunk.own), chunk.log_sums,
        query_heads(qkv, chunk.own), key_heads(keys.all, keys.rows, false),
        key_heads(keys.all, keys.rows, true), mask_of(chunk, keys.tokens), attention_.scale_, {},
        context.batch.samples, attention_.slice(heads_));
    if (narrow) ops().copy(dq, to_dq);
    chunk.results.put(number, slot, [&](int to_slot, int from) {
      const Tensor result_of = result(chunk, to_slot);
      ops().add(result_of, result_of, result(chunk, from));
    });
    if (at_once) return;
    if (!added) return ops().copy(to, dkeys);
    Tensor summand = dkeys;
    if (to.type() != dkeys.type()) {
      summand = exchanged(attention_.wide_dpiece_, chunk_);
      ops().copy(summand, dkeys);
    }
    ops().add(flat(to), flat(to), flat(summand));
  }

  void reduce() const {
    const Tensor all = all_dkeys();
    if (part_.ranks() > 1) {
      of_all(all, [](comm::Communicator& group, const Tensor& whole, const Tensor& own,
                     const std::vector<std::int64_t>& counts, device::Stream& stream) {
        return group.reduce_scatter_v(own, whole, counts, comm::Reduction::sum, stream);
      }).wait();
    }
    for (int local = 0; local < part_.count; ++local) {
      const UnitContext& context = *pairs_[static_cast<std::size_t>(local)];
      const std::int64_t begin = rows_of_pairs(part_.first + local);
      ops().copy(key_columns(context.full(attention_.dfirst_[tile_])),
                 rows_of(all, {begin, begin + rows_of_pairs(1)}));
    }
  }

  const Attention& attention_;
  std::span<const UnitContext* const> pairs_;
  std::size_t tile_;
  const UnitContext& first_;
  const ContextPart& part_;
  TileHeads heads_;
  std::int64_t chunk_;            // its tokens
  std::int64_t width_;            // of k|v
  std::vector<Results> results_;  // by pair, sequence and half
};

void Attention::plan_exchange(UnitPlan& plan) {
  const Shares& shares = plan.shares();
  std::int64_t queries = 0, width = 0;
  for (int i = 0; i < shares.tiles.count; ++i) {
    const TileHeads own = heads_of_tile(heads_, kv_heads_, shares.tiles, i);
    queries = std::max(queries, own.query.size());
    width = std::max(width, 2 * own.key.size() * head_size_);
  }
  const ContextPart& part = shares.context;
  const std::int64_t all = plan.rows() * part.pairs, chunk = sequence_ / (2 * part.pairs);
  const std::int64_t buffer = shares.ring ? plan.rows() * part.count : all;
  keys_ = plan.add(Area::scratch, shares.ring ? 2 * buffer : buffer, width);
  all_dkeys_ = plan.add(Area::scratch, all, width, shares.partial());
  const auto levels =
      static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(part.count - 1)));
  dkeys_ = plan.add_tiles(Area::scratch, buffer, std::vector(levels, width), shares.partial());
  dpiece_ = plan.add(Area::scratch, chunk, width);
  if (shares.partial() != shares.compute)
    wide_dpiece_ = plan.add(Area::scratch, chunk, width, shares.partial());
  const std::vector<std::int64_t> results(slots_of(shares), queries);
  sums_ = plan.add_tiles(Area::scratch, plan.rows(), results, DType::f32);
  results_ = plan.add_tiles(Area::scratch, plan.rows(),
                            std::vector(results.size(), queries * head_size_), DType::f32);
  if (shares.narrow()) piece_ = plan.add(Area::scratch, plan.rows(), queries * head_size_);
}

void Attention::attend_pairs(std::span<const UnitContext* const> calls) const {
  for (std::size_t tile = 0; tile < first_.size(); ++tile) {
    const bool heads =
        heads_of_tile(heads_, kv_heads_, calls.front()->shares.tiles, static_cast<int>(tile))
            .query.size() > 0;
    if (heads) Exchange(*this, calls, tile).attend();
  }
}

void Attention::attend_pairs_backward(std::span<const UnitContext* const> calls) const {
  for (std::size_t tile = 0; tile < first_.size(); ++tile) {
    const bool heads =
        heads_of_tile(heads_, kv_heads_, calls.front()->shares.tiles, static_cast<int>(tile))
            .query.size() > 0;
    if (heads) Exchange(*this, calls, tile).attend_backward();
  }
}

}  // namespace trireme::model
