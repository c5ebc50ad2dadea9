// Long because forward and backward of an exchange share its shapes.
// Attention where a sequence's tokens are on several ranks (ContextPart): keys and values of all of
// them are gathered, and each rank computes its own queries. Causal work is even, since a rank has
// as many tokens from the end of a sequence as from its beginning. Grattafiori et al., "The Llama 3
// herd of models" (2024), section 3.3.2.
//
// In reproducible mode a call of attention has one chunk of queries and one of keys. Results are
// merged by their log-sum-exps (Dao et al., "FlashAttention", 2022, section 3.1) in fp32, in a
// balanced tree over the chunks of keys. Backward takes the final log-sum-exp, so that its calls
// are independent: gradients for queries are added in the same tree, those for keys over the two
// chunks of a pair and then in a tree over pairs, which the sum over ranks continues.
#include <algorithm>
#include <bit>

#include "trireme/model/block.hpp"

namespace trireme::model {

namespace {

/// `rows` rows of x [R, width] from row `begin` on, and `count` heads from column `first` on, as
/// [1, rows, count, D].
Tensor heads_of_rows(const Tensor& x, std::int64_t begin, std::int64_t rows, std::int64_t first,
                     std::int64_t count, std::int64_t head_size) {
  const std::int64_t row = x.stride(0);
  const std::size_t offset = static_cast<std::size_t>(begin * row + first) * size_of(x.type());
  return {static_cast<std::byte*>(x.data()) + offset,
          x.type(),
          {1, rows, count, head_size},
          {rows * row, row, head_size, 1}};
}

Tensor flat(const Tensor& x) { return x.reshape({x.elements()}); }

Tensor rows_of(const Tensor& x, const params::Range& rows) {
  return x.slice(0, rows.begin, rows.end);
}

int levels_of(std::int64_t terms) {
  return std::bit_width(static_cast<std::uint64_t>(terms - 1)) + 1;
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
        length_(2 * part_.pairs * chunk_),
        piece_rows_(first_.shares.reproducible ? chunk_ : length_),
        width_(2 * heads_.key.size() * attention.head_size_) {}

  void attend() {
    gather();
    for_each_chunk([&](const UnitContext& context, std::int64_t sequence, int half) {
      const Chunk chunk = chunk_of(context, sequence, half);
      const Tensor out = chunk.rows(context.full(attention_.middle_[tile_]));
      forward_tree(chunk, {0, pieces_in_all()}, 0, top(chunk, out), chunk.log_sums);
      finish(out, top(chunk, out));
    });
  }

  void attend_backward() {
    gather();
    sum_pairs(0, part_.count, 0);
    reduce();
  }

 private:
  /// A chunk of queries.
  struct Chunk {
    const UnitContext& context;
    std::int64_t sequence;  // of the leaf
    int half;
    params::Range own;  // rows of its pair
    std::int64_t last;  // its number in the sequence
    Tensor log_sums;    // [1, Hv, rows]
    Tensor rows(const Tensor& x) const { return rows_of(x, own); }
  };

  ops::Ops& ops() const { return first_.ops; }
  std::int64_t pieces_in_all() const { return length_ / piece_rows_; }
  /// Keys of piece `number` that a chunk may see.
  params::Range piece(const Chunk& chunk, std::int64_t number) const {
    const std::int64_t end = (chunk.last + 1) * chunk_;
    return {number * piece_rows_, std::min((number + 1) * piece_rows_, end)};
  }
  bool sees(const Chunk& chunk, std::int64_t piece) const {
    return piece * piece_rows_ < (chunk.last + 1) * chunk_;
  }

  template <class Visit>
  void for_each_chunk_of(const UnitContext& context, const Visit& visit) const {
    for (std::int64_t sequence = 0; sequence < context.batch.sequences; ++sequence) {
      for (const int half : {0, 1}) visit(context, sequence, half);
    }
  }
  template <class Visit>
  void for_each_chunk(const Visit& visit) const {
    for (const UnitContext* context : pairs_) for_each_chunk_of(*context, visit);
  }
  /// The number of a call's pair in the sequence.
  int pair_of(const UnitContext& context) const {
    const auto at = std::ranges::find(pairs_, &context) - pairs_.begin();
    return part_.first + static_cast<int>(at);
  }
  Chunk chunk_of(const UnitContext& context, std::int64_t sequence, int half) const {
    const std::int64_t begin = (2 * sequence + half) * chunk_;
    const params::Range own{begin, begin + chunk_};
    const Tensor lse = rows_of(context.full(attention_.lse_[tile_]), own);
    return {context,
            sequence,
            half,
            own,
            part_.chunk(pair_of(context), half),
            lse.reshape({1, heads_.query.size(), chunk_})};
  }

  // Memory: one for all pairs, in the first call's scratch.
  Tensor exchanged(const Slot& slot, std::int64_t rows) const {
    const Tensor all = first_.memory.view(slot, rows);
    return {all.data(), all.type(), {rows, width_}};
  }
  std::int64_t all_rows() const { return first_.batch.sequences * length_; }
  Tensor keys() const { return exchanged(attention_.keys_, all_rows()); }
  Tensor by_rank(bool gradients) const {
    return exchanged(gradients ? attention_.dkeys_by_rank_ : attention_.keys_by_rank_, all_rows());
  }
  Tensor dkeys(int level) const {
    return exchanged(attention_.dkeys_[static_cast<std::size_t>(level)], all_rows());
  }
  /// [rows, Hv·D] in scratch.
  Tensor of_chunk(const Chunk& chunk, const Slot& slot) const {
    const Tensor all = chunk.context.memory.view(slot, chunk_);
    return {all.data(), all.type(), {chunk_, heads_.query.size() * attention_.head_size_}};
  }
  Tensor level(const Chunk& chunk, int number) const {
    return of_chunk(chunk, attention_.out_levels_[static_cast<std::size_t>(number)]);
  }
  /// Where a tree's result goes: with one piece to `out` at once.
  Tensor top(const Chunk& chunk, const Tensor& out) const {
    return pieces_in_all() == 1 ? out : level(chunk, 0);
  }
  void finish(const Tensor& out, const Tensor& result) const {
    if (out.data() != result.data()) ops().copy(out, result);
  }

  /// visit(rows by rank, rows in the order of tokens) for each chunk of all sequences.
  template <class Visit>
  void for_each_place(const Visit& visit) const {
    const std::int64_t sequences = first_.batch.sequences, pair_rows = 2 * chunk_;
    for (std::int64_t pair = 0; pair < part_.pairs; ++pair) {
      const std::int64_t rank = pair / part_.count, local = pair % part_.count;
      for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
        for (const int half : {0, 1}) {
          const std::int64_t from =
              ((rank * part_.count + local) * sequences + sequence) * pair_rows + half * chunk_;
          const std::int64_t to =
              sequence * length_ + part_.chunk(static_cast<int>(pair), half) * chunk_;
          visit(params::Range{from, from + chunk_}, params::Range{to, to + chunk_});
        }
      }
    }
  }
  /// This rank's rows of what is in the order of ranks, of its pair number `local`.
  Tensor own_rows(const Tensor& all, int local) const {
    const std::int64_t rows = first_.batch.tokens(), begin = (part_.first + local) * rows;
    return all.slice(0, begin, begin + rows);
  }
  /// The columns k|v of q|k|v.
  Tensor key_columns(const Tensor& qkv) const {
    return qkv.slice(1, qkv.extent(1) - width_, qkv.extent(1));
  }

  void gather() const {
    const Tensor all = by_rank(false);
    for (int local = 0; local < part_.count; ++local) {
      const UnitContext& context = *pairs_[static_cast<std::size_t>(local)];
      ops().copy(own_rows(all, local), key_columns(context.full(attention_.first_[tile_])));
    }
    if (part_.ranks() > 1) {
      exchange(all, [](comm::Communicator& group, const Tensor& whole, const Tensor& own,
                       const std::vector<std::int64_t>& counts, device::Stream& stream) {
        return group.all_gather_v(whole, own, counts, stream);
      });
    }
    for_each_place([&](const params::Range& from, const params::Range& to) {
      ops().copy(rows_of(keys(), to), rows_of(all, from));
    });
  }

  template <class Operation>
  void exchange(const Tensor& all, Operation operation) const {
    comm::Communicator& group = *first_.tensor.context;
    const std::int64_t rows = first_.batch.tokens() * part_.count;
    const Tensor own = all.slice(0, rows * group.rank(), rows * (group.rank() + 1));
    start_collective(first_, [&group, &stream = first_.tensor.stream, operation, whole = flat(all),
                              part = flat(own),
                              counts = std::vector<std::int64_t>(
                                  static_cast<std::size_t>(group.size()), rows * width_)] {
      return operation(group, whole, part, counts, stream);
    }).wait();
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
    return heads_of_rows(x, rows.begin, rows.size(), 0, heads_.query.size(), attention_.head_size_);
  }
  Tensor query_heads(const Tensor& x) const { return query_heads(x, {0, x.extent(0)}); }
  /// Keys, or with `values` values, of rows of k|v.
  Tensor key_heads(const Tensor& x, const params::Range& rows, bool values) const {
    return heads_of_rows(x, rows.begin, rows.size(), values ? width_ / 2 : 0, heads_.key.size(),
                         attention_.head_size_);
  }
  params::Range in_sequence(const Chunk& chunk, const params::Range& tokens) const {
    const std::int64_t first = chunk.sequence * length_;
    return {first + tokens.begin, first + tokens.end};
  }

  /// out [rows, Hv·D] and lse of a chunk over `pieces`, of which it sees the first.
  void forward_tree(const Chunk& chunk, const params::Range& pieces, int depth, const Tensor& out,
                    const Tensor& lse) const {
    if (pieces.size() == 1) return forward_piece(chunk, pieces.begin, out, lse);
    const std::int64_t middle = pieces.begin + pieces.size() / 2;
    forward_tree(chunk, {pieces.begin, middle}, depth, out, lse);
    if (!sees(chunk, middle)) return;
    const Tensor other = level(chunk, depth + 1);
    const Tensor scratch =
        chunk.context.memory.view(attention_.lse_levels_[static_cast<std::size_t>(depth)], chunk_);
    const Tensor sums(scratch.data(), DType::f32, {1, heads_.query.size(), chunk_});
    forward_tree(chunk, {middle, pieces.end}, depth + 1, other, sums);
    const auto by_head = [&](const Tensor& x) {
      return x.reshape({chunk_, heads_.query.size(), attention_.head_size_});
    };
    ops().merge_attention(by_head(out), lse.reshape(sums_shape()), by_head(other),
                          sums.reshape(sums_shape()));
  }

  Shape sums_shape() const { return {heads_.query.size(), chunk_}; }

  void forward_piece(const Chunk& chunk, std::int64_t number, const Tensor& out,
                     const Tensor& lse) const {
    const params::Range tokens = piece(chunk, number), rows = in_sequence(chunk, tokens);
    const Tensor qkv = chunk.context.full(attention_.first_[tile_]);
    const bool apart = out.type() != qkv.type();
    const Tensor to = apart ? of_chunk(chunk, attention_.piece_) : out;
    ops().attention(query_heads(to), lse, query_heads(qkv, chunk.own),
                    key_heads(keys(), rows, false), key_heads(keys(), rows, true),
                    mask_of(chunk, tokens), attention_.scale_, {}, chunk.context.batch.samples,
                    attention_.slice(heads_));
    if (apart) ops().copy(out, to);
  }

  /// dkeys(level) = Σ over `count` of this rank's pairs; and the gradients for their queries.
  void sum_pairs(int first, int count, int level) {
    if (count == 1) return backward_pair(*pairs_[static_cast<std::size_t>(first)], dkeys(level));
    sum_pairs(first, count / 2, level);
    sum_pairs(first + count / 2, count / 2, level + 1);
    ops().add(flat(dkeys(level)), flat(dkeys(level)), flat(dkeys(level + 1)));
  }

  void backward_pair(const UnitContext& context, const Tensor& sum) const {
    for_each_chunk_of(context, [&](const UnitContext&, std::int64_t sequence, int half) {
      const Chunk chunk = chunk_of(context, sequence, half);
      const Tensor dqkv = context.full(attention_.dfirst_[tile_]);
      const Tensor dq = chunk.rows(dqkv).slice(1, 0, dqkv.extent(1) - width_);
      backward_tree(chunk, {0, pieces_in_all()}, 0, top(chunk, dq), sum);
      finish(dq, top(chunk, dq));
      if (half == 0) return;
      const params::Range unseen = in_sequence(chunk, {(chunk.last + 1) * chunk_, length_});
      if (unseen.size() > 0) ops().fill(rows_of(sum, unseen), 0);
    });
  }

  void backward_tree(const Chunk& chunk, const params::Range& pieces, int depth, const Tensor& dq,
                     const Tensor& sum) const {
    if (pieces.size() == 1) return backward_piece(chunk, pieces.begin, dq, sum);
    const std::int64_t middle = pieces.begin + pieces.size() / 2;
    backward_tree(chunk, {pieces.begin, middle}, depth, dq, sum);
    if (!sees(chunk, middle)) return;
    const Tensor other = level(chunk, depth + 1);
    backward_tree(chunk, {middle, pieces.end}, depth + 1, other, sum);
    ops().add(dq, dq, other);
  }

  void backward_piece(const Chunk& chunk, std::int64_t number, const Tensor& dq,
                      const Tensor& sum) const {
    const params::Range tokens = piece(chunk, number), rows = in_sequence(chunk, tokens);
    const UnitContext& context = chunk.context;
    const Tensor qkv = context.full(attention_.first_[tile_]);
    const bool narrow = dq.type() != qkv.type(), added = chunk.half == 1;
    const Tensor to_dq = narrow ? of_chunk(chunk, attention_.piece_) : dq;
    // The first chunk's gradients are written, and the last one's added to them.
    const Tensor to = rows_of(sum, rows);
    const bool at_once = !added && to.type() == qkv.type();
    const Tensor dkeys = at_once ? to : exchanged(attention_.dpiece_, tokens.size());
    const params::Range all{0, tokens.size()};
    ops().attention_backward(
        query_heads(to_dq), key_heads(dkeys, all, false), key_heads(dkeys, all, true),
        query_heads(context.full(attention_.dmiddle_[tile_]), chunk.own),
        query_heads(context.full(attention_.middle_[tile_]), chunk.own), chunk.log_sums,
        query_heads(qkv, chunk.own), key_heads(keys(), rows, false), key_heads(keys(), rows, true),
        mask_of(chunk, tokens), attention_.scale_, {}, context.batch.samples,
        attention_.slice(heads_));
    if (narrow) ops().copy(dq, to_dq);
    if (at_once) return;
    Tensor summand = dkeys;
    if (to.type() != dkeys.type()) {
      summand = exchanged(attention_.wide_dpiece_, tokens.size());
      ops().copy(summand, dkeys);
    }
    // Keys that the first chunk saw too.
    const std::int64_t first_end = (part_.chunk(pair_of(context), 0) + 1) * chunk_;
    const std::int64_t both =
        added ? std::clamp<std::int64_t>(first_end - tokens.begin, 0, tokens.size()) : 0;
    const auto seen_by_both = [&](const Tensor& x) { return flat(x.slice(0, 0, both)); };
    if (both > 0) {
      ops().add(seen_by_both(to), seen_by_both(to), seen_by_both(summand));
    }
    if (both == tokens.size()) return;
    ops().copy(to.slice(0, both, tokens.size()), summand.slice(0, both, tokens.size()));
  }

  void reduce() const {
    const Tensor all = by_rank(true);
    for_each_place([&](const params::Range& to, const params::Range& from) {
      ops().copy(rows_of(all, to), rows_of(dkeys(0), from));
    });
    if (part_.ranks() > 1) {
      exchange(all, [](comm::Communicator& group, const Tensor& whole, const Tensor& own,
                       const std::vector<std::int64_t>& counts, device::Stream& stream) {
        return group.reduce_scatter_v(own, whole, counts, comm::Reduction::sum, stream);
      });
    }
    for (int local = 0; local < part_.count; ++local) {
      const UnitContext& context = *pairs_[static_cast<std::size_t>(local)];
      ops().copy(key_columns(context.full(attention_.dfirst_[tile_])), own_rows(all, local));
    }
  }

  const Attention& attention_;
  std::span<const UnitContext* const> pairs_;
  std::size_t tile_;
  const UnitContext& first_;
  const ContextPart& part_;
  TileHeads heads_;
  std::int64_t chunk_, length_;  // tokens of a chunk and of the whole sequence
  std::int64_t piece_rows_;      // keys of a call
  std::int64_t width_;           // of k|v
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
  const bool narrow = shares.narrow() && shares.reproducible;
  keys_by_rank_ = plan.add(Area::scratch, all, width);
  keys_ = plan.add(Area::scratch, all, width);
  dkeys_by_rank_ = narrow ? plan.add(Area::scratch, all, width, DType::f32) : keys_by_rank_;
  const auto levels = [&](std::int64_t terms) {
    return static_cast<std::size_t>(levels_of(terms));
  };
  const std::vector<std::int64_t> sums(levels(part.count), width);
  dkeys_ = plan.add_tiles(Area::scratch, all, sums, shares.partial());
  // Without reproducible mode all keys up to the end of this rank's last chunk.
  const std::int64_t piece = shares.reproducible ? chunk : (part.chunk(part.first, 1) + 1) * chunk;
  dpiece_ = plan.add(Area::scratch, piece, width);
  if (narrow) wide_dpiece_ = plan.add(Area::scratch, piece, width, DType::f32);
  if (!shares.reproducible) return;
  const std::vector<std::int64_t> outs(levels(2 * part.pairs), queries * head_size_);
  out_levels_ = plan.add_tiles(Area::scratch, chunk, outs, DType::f32);
  lse_levels_ = plan.add_tiles(Area::scratch, chunk,
                               std::vector<std::int64_t>(outs.size() - 1, queries), DType::f32);
  if (narrow) piece_ = plan.add(Area::scratch, chunk, queries * head_size_);
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
