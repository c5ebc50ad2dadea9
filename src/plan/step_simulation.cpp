// Long because matching, computation and streams of one simulation share its state.
#include "trireme/plan/step_simulation.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <queue>
#include <set>
#include <tuple>

#include "trireme/core/error.hpp"

namespace trireme::plan {

namespace {

using comm::GroupKind;
using comm::OperationKind;

/// An operation of a rank's stream.
struct Operation {
  const StreamOperation* what = nullptr;
  struct Peers* peers = nullptr;  // of a group
  double seconds = 0;             // of a collective, or in memory
  bool between_nodes = false;     // a collective's group has ranks of several nodes
  std::size_t part = 0;           // that waiting for it belongs to
  std::vector<std::size_t> transfers;
  std::size_t left = 0;  // transfers under way
  bool released = false, begun = false, done = false;
  double since = -1;  // when its first transfer began; below 0: none has
  double end = 0;     // once done
};

/// Something that several ranks do together: a collective, or one message.
struct Transfer {
  std::size_t sides = 0, arrived = 0;
  double seconds = 0;
  bool between_nodes = false;
  OperationKind kind = OperationKind::exchange;                // as the first side has it
  std::int64_t bytes = 0;                                      // likewise
  std::vector<std::pair<std::size_t, Operation*>> operations;  // by side: class, and its operation
  const std::string* sequence = nullptr;  // what it is one of; null: a rank's own
  // While it is under way: what is left at `since`, in seconds at full speed.
  double left = 0, since = 0, speed = 1;
  std::uint64_t version = 0;
};

/// Transfers between the same classes, in the order in which each of them starts its side.
struct Sequence {
  std::string name;
  std::vector<std::size_t> transfers;
};

/// A rank's place in a sequence.
struct Cursor {
  Sequence* sequence = nullptr;
  std::size_t next = 0;
  bool same_node = false;  // of messages
  int sharing = 1;         // likewise: a node's link to others
};

/// A rank's channel.
struct Peers {
  std::vector<int> members;  // world ranks
  std::size_t classes = 0;   // of members
  std::string name;
  Cursor collectives;
  std::map<std::pair<int, bool>, Cursor> messages;  // by member, and whether they are sent to it
};

/// What a section takes where nothing else is under way and the host is ahead.
struct SectionTimes {
  double seconds = 0, busy = 0;
  double launches = 0;  // the host's time
  double lead = 0;      // by which the host must be ahead, so that the device never waits for it
  std::vector<std::pair<std::size_t, double>> parts;
};

/// A section of a rank's trace.
struct SectionState {
  const Section* what = nullptr;
  std::vector<Operation> operations;
  bool apart = true;  // it concerns this class alone, and the host waits for nothing in it
  std::optional<SectionTimes> times;
};

struct Rank {
  const Trace* trace = nullptr;
  std::vector<Operation> operations;
  std::vector<SectionState> sections;
  std::vector<std::deque<Operation*>> streams;  // begun or not, in order
  std::size_t queued = 0;                       // operations on streams
  std::map<std::pair<Channel, bool>, Peers> channels;
  std::size_t next = 0;                   // instruction
  SectionState* section = nullptr;        // that it is in, if it is simulated call by call
  std::size_t next_inside = 0;            // of that section
  const SectionState* passing = nullptr;  // likewise, if its times are known
  bool call_made = false;                 // the next instruction's
  double host = 0;                        // when the host has made its calls so far
  double launched = 0, lead = 0;          // the host's time; see SectionTimes
  bool computing = false, resuming = false;
  double left = 0, since = 0, began = 0;  // of the computation: seconds at full speed
  std::size_t work = 0;
  std::vector<double> seconds;     // by work of the trace
  std::vector<double> launches;    // likewise: seconds of the host
  std::vector<std::size_t> kinds;  // likewise: the part that it belongs to
  Operation* waits_for = nullptr;
  double waits_since = 0;
  std::array<std::vector<std::size_t>, 2> under_way;  // transfers, in a node and between nodes
  std::uint64_t version = 0;
  bool ended = false;
  std::vector<double> parts;
  RankTimes times;
};

struct Event {
  enum class Kind : std::uint8_t { computed, passed, resume, transferred } kind;
  double time = 0;
  std::uint64_t number = 0;  // of events of one time the first is the first
  std::size_t of = 0;        // rank or transfer
  std::uint64_t version = 0;
  bool operator>(const Event& other) const {
    return std::tie(time, number) > std::tie(other.time, other.number);
  }
};

class Simulation {
 public:
  /// `ready_host`: the device never waits for the host.
  Simulation(const comm::GridShape& shape, const std::vector<RankClass>& classes,
             const ClassOf& class_of, const Machine& machine, const SpanObserver& observe,
             bool ready_host = false)
      : shape_(shape),
        classes_(classes),
        class_of_(class_of),
        machine_(machine),
        observe_(observe),
        ready_host_(ready_host),
        launches_(part_of("launches")) {
    ranks_.resize(classes.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r) prepare(r);
  }

  StepTimes run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) advance(r);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      switch (event.kind) {
        case Event::Kind::computed:
          if (event.version == ranks_[event.of].version) finish_computing(event.of);
          break;
        case Event::Kind::passed:
          finish_section(event.of);
          break;
        case Event::Kind::resume:
          ranks_[event.of].resuming = false;
          advance(event.of);
          break;
        case Event::Kind::transferred:
          if (event.version == transfers_[event.of].version) finish_transfer(event.of);
          break;
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) start_the_rest(r);
    for (const Transfer& transfer : transfers_) {
      if (transfer.sequence == nullptr || transfer.sides == transfer.operations.size()) continue;
      throw Error("plan: an operation of {}: {} of {} sides take part; their programs do not agree",
                  *transfer.sequence, transfer.operations.size(), transfer.sides);
    }
    StepTimes result;
    for (Rank& rank : ranks_) {
      if (!rank.ended) refuse_wait(rank);
      for (std::size_t part = 0; part < rank.parts.size(); ++part) {
        if (rank.parts[part] > 0) rank.times.parts[part_names_[part]] = rank.parts[part];
      }
      result.seconds = std::max(result.seconds, rank.times.end);
      result.ranks.push_back(rank.times);
    }
    result.seconds += machine_.device.step_ms * 1e-3;
    return result;
  }

 private:
  std::size_t part_of(std::string_view name) {
    const auto found = std::find(part_names_.begin(), part_names_.end(), name);
    if (found != part_names_.end()) return static_cast<std::size_t>(found - part_names_.begin());
    part_names_.emplace_back(name);
    return part_names_.size() - 1;
  }

  void prepare(std::size_t r) {
    Rank& rank = ranks_[r];
    const Trace& trace = classes_[r].trace;
    rank.trace = &trace;
    rank.times.rank = classes_[r].rank;
    for (const Work& work : trace.works) {
      rank.seconds.push_back(machine_.seconds(work));
      rank.launches.push_back(machine_.launch_seconds(work));
      rank.kinds.push_back(part_of(name_of(work.kind)));
    }
    rank.operations = prepared(rank, trace.operations);
    for (const Section& section : trace.sections) {
      SectionState& state = rank.sections.emplace_back();
      state.what = &section;
      state.operations = prepared(rank, section.operations);
      for (const Operation& each : state.operations) {
        const bool own = each.peers == nullptr || each.peers->classes == 1;
        if (!own || each.what->blocking || each.what->channel.direction) state.apart = false;
      }
      for (const Instruction& each : section.instructions) {
        if (each.kind == Instruction::Kind::wait_for_device) state.apart = false;
      }
    }
  }
  std::vector<Operation> prepared(Rank& rank, const std::vector<StreamOperation>& list) {
    std::vector<Operation> result(list.size());
    for (std::size_t o = 0; o < list.size(); ++o) {
      const StreamOperation& what = list[o];
      Operation& operation = result[o];
      operation.what = &what;
      const std::size_t stream = stream_of(what);
      if (rank.streams.size() <= stream) rank.streams.resize(stream + 1);
      if (what.local > 0) {
        operation.part = part_of("memory");
        operation.seconds = machine_.local_seconds(what.local);
        continue;
      }
      operation.part = part_of(to_string(what.channel));
      operation.peers = &peers_of(rank, what);
      if (is_collective(what)) {
        const Placement placed = placement(what.channel.kind, operation.peers->members);
        operation.seconds = machine_.seconds(what.planned, placed);
        operation.between_nodes = placed.nodes > 1;
      }
    }
    return result;
  }
  static bool is_collective(const StreamOperation& operation) {
    return operation.planned.kind != OperationKind::exchange &&
           operation.planned.kind != OperationKind::all_to_all;
  }

  /// Of a rank that waits forever: matches what it would start, to tell why.
  void start_the_rest(std::size_t r) {
    Rank& rank = ranks_[r];
    while (const Instruction* instruction = rank.ended ? nullptr : next_instruction(rank)) {
      if (instruction->kind == Instruction::Kind::section) {
        rank.section = &rank.sections[static_cast<std::size_t>(instruction->index)];
        rank.next_inside = 0;
        continue;
      }
      if (instruction->kind == Instruction::Kind::start) {
        match(r, operation_of(rank, instruction->index));
      }
      step(rank);
    }
  }
  [[noreturn]] void refuse_wait(const Rank& rank) const {
    if (rank.waits_for == nullptr) throw Error("plan: rank {} never ends", rank.times.rank);
    throw Error(
        "plan: rank {} waits forever for an operation of group {}; its peers never come to it",
        rank.times.rank, to_string(rank.waits_for->what->channel));
  }

  int node_of(int rank) const { return rank / static_cast<int>(machine_.ranks_per_node); }

  Placement placement(GroupKind kind, const std::vector<int>& ranks) {
    const int first = ranks.front();
    const auto key = std::pair(kind, first);
    const auto known = placements_.find(key);
    if (known != placements_.end()) return known->second;
    std::set<int> nodes;
    for (const int rank : ranks) nodes.insert(node_of(rank));
    std::set<int> groups;  // of the first rank's node, by first rank
    const int node = node_of(first), per_node = static_cast<int>(machine_.ranks_per_node);
    for (int rank = node * per_node; rank < std::min(shape_.size(), (node + 1) * per_node);
         ++rank) {
      groups.insert(comm::members(shape_, kind, rank).front());
    }
    const Placement result{static_cast<int>(ranks.size()), static_cast<int>(nodes.size()),
                           static_cast<int>(groups.size())};
    placements_[key] = result;
    return result;
  }

  /// Ranks of this rank's node that send to another node along the pipeline.
  int sharing_messages(int rank, int step) const {
    const int node = node_of(rank), per_node = static_cast<int>(machine_.ranks_per_node);
    int count = 0;
    for (int r = node * per_node; r < std::min(shape_.size(), (node + 1) * per_node); ++r) {
      const std::vector<int> stages = comm::members(shape_, GroupKind::pipeline, r);
      const auto at = static_cast<int>(std::find(stages.begin(), stages.end(), r) - stages.begin());
      const int size = static_cast<int>(stages.size());
      if (node_of(stages[static_cast<std::size_t>((at + step + size) % size)]) != node) ++count;
    }
    return count;
  }

  Sequence& sequence_of(std::string name) {
    Sequence& sequence = sequences_[name];
    sequence.name = std::move(name);
    return sequence;
  }
  /// The next transfer of a rank's sequence, made by whichever side comes first.
  std::size_t next_of(Cursor& cursor, std::size_t sides) {
    std::vector<std::size_t>& known = cursor.sequence->transfers;
    if (cursor.next == known.size()) {
      known.push_back(transfers_.size());
      transfers_.push_back({.sides = sides, .sequence = &cursor.sequence->name});
    }
    return known[cursor.next++];
  }
  /// A transfer that concerns one class alone.
  std::size_t own_transfer(std::size_t r, Operation& operation) {
    if (free_transfers_.empty()) {
      free_transfers_.push_back(transfers_.size());
      transfers_.push_back({.sides = 1, .operations = {{r, &operation}}});
    }
    const std::size_t t = free_transfers_.back();
    free_transfers_.pop_back();
    transfers_[t].arrived = 0;
    transfers_[t].seconds = operation.seconds;
    transfers_[t].between_nodes = operation.between_nodes;
    transfers_[t].operations.front() = {r, &operation};
    return t;
  }

  Peers& peers_of(Rank& rank, const StreamOperation& operation) {
    const auto [place, is_new] =
        rank.channels.try_emplace({operation.channel, operation.planned.agreement});
    Peers& peers = place->second;
    if (!is_new) return peers;
    peers.members = comm::members(shape_, operation.channel.kind, rank.times.rank);
    peers.name = to_string(operation.channel) + (operation.planned.agreement ? " agreement" : "");
    std::set<std::size_t> classes;
    for (const int member : peers.members) classes.insert(class_of_(member));
    peers.classes = classes.size();
    std::string name = peers.name + " of";
    for (const std::size_t c : classes) name += fmt::format(" {}", classes_[c].rank);
    peers.collectives.sequence = &sequence_of(std::move(name));
    return peers;
  }

  /// Makes the transfers that an operation takes part in. Ranks start theirs in the same order.
  void match(std::size_t r, Operation& operation) {
    operation.transfers.clear();
    operation.released = operation.begun = operation.done = false;
    operation.since = -1;
    const bool collective = operation.peers != nullptr && is_collective(*operation.what);
    if (operation.peers == nullptr || (collective && operation.peers->classes == 1)) {
      operation.transfers.push_back(own_transfer(r, operation));
    } else if (collective) {
      match_collective(r, operation);
    } else {
      for (const auto& message : operation.what->planned.messages) {
        match_message(r, operation, message);
      }
    }
  }

  void match_collective(std::size_t r, Operation& operation) {
    const comm::PlannedOperation& planned = operation.what->planned;
    const std::size_t t = next_of(operation.peers->collectives, operation.peers->classes);
    Transfer& transfer = transfers_[t];
    if (transfer.operations.empty()) {
      transfer.kind = planned.kind;
      transfer.bytes = planned.bytes;
      transfer.seconds = operation.seconds;
      transfer.between_nodes = operation.between_nodes;
    } else if (transfer.kind != planned.kind || transfer.bytes != planned.bytes) {
      throw Error("plan: {}: rank {} has {} of {} bytes, others {} of {}", *transfer.sequence,
                  ranks_[r].times.rank, comm::name_of(planned.kind), planned.bytes,
                  comm::name_of(transfer.kind), transfer.bytes);
    }
    transfer.operations.emplace_back(r, &operation);
    operation.transfers.push_back(t);
  }

  void match_message(std::size_t r, Operation& operation,
                     const comm::PlannedOperation::Message& message) {
    Peers& peers = *operation.peers;
    const int own = ranks_[r].times.rank;
    const int peer = peers.members[static_cast<std::size_t>(message.peer)];
    Cursor& cursor = peers.messages[{message.peer, message.send}];
    if (cursor.sequence == nullptr) {
      const int from = message.send ? own : classes_[class_of_(peer)].rank;
      const int to = message.send ? classes_[class_of_(peer)].rank : own;
      cursor.sequence = &sequence_of(fmt::format("{} from {} to {}", peers.name, from, to));
      cursor.same_node = node_of(own) == node_of(peer);
      const auto place = [&](int member) {
        return std::find(peers.members.begin(), peers.members.end(), member);
      };
      if (!cursor.same_node) {
        cursor.sharing = sharing_messages(own, static_cast<int>(place(peer) - place(own)));
      }
    }
    const std::size_t t = next_of(cursor, 2);
    Transfer& transfer = transfers_[t];
    if (transfer.operations.empty()) {
      transfer.seconds = machine_.message_seconds(message.bytes, cursor.same_node, cursor.sharing);
      transfer.between_nodes = !cursor.same_node;
      transfer.bytes = message.bytes;
    } else if (transfer.bytes != message.bytes) {
      throw Error("plan: {}: {} bytes on one side, {} on the other", *transfer.sequence,
                  transfer.bytes, message.bytes);
    }
    transfer.operations.emplace_back(r, &operation);
    operation.transfers.push_back(t);
  }

  void add_event(Event::Kind kind, double time, std::size_t of, std::uint64_t version = 0) {
    events_.push({kind, time, next_event_++, of, version});
  }

  static void add(Rank& rank, std::size_t part, double seconds) {
    if (rank.parts.size() <= part) rank.parts.resize(part + 1);
    rank.parts[part] += seconds;
  }
  /// The rank computes or waits.
  void note(std::size_t r, std::size_t part, double begin, double end) {
    if (end <= begin) return;
    add(ranks_[r], part, end - begin);
    if (observe_) observe_({.of = r, .part = part_names_[part], .begin = begin, .end = end});
  }

  // Computation

  double speed(const Rank& rank) const {
    return 1 / std::max(rank.under_way[0].empty() ? 1 : machine_.node.slowdown,
                        rank.under_way[1].empty() ? 1 : machine_.network.slowdown);
  }
  void schedule(std::size_t r) {
    Rank& rank = ranks_[r];
    add_event(Event::Kind::computed, now_ + rank.left / speed(rank), r, ++rank.version);
  }
  /// A transfer of the rank begins or ends.
  void change_load(std::size_t r, std::size_t t, bool begins) {
    Rank& rank = ranks_[r];
    const double before = speed(rank);
    std::vector<std::size_t>& transfers = rank.under_way[transfers_[t].between_nodes ? 1 : 0];
    if (begins) {
      transfers.push_back(t);
    } else {
      transfers.erase(std::find(transfers.begin(), transfers.end(), t));
    }
    if (!rank.computing || before == speed(rank)) return;
    rank.left = std::max(0.0, rank.left - (now_ - rank.since) * before);
    rank.since = now_;
    schedule(r);
  }
  /// The rank begins or stops to compute.
  void set_computing(std::size_t r, bool computing) {
    Rank& rank = ranks_[r];
    rank.computing = computing;
    for (const bool between_nodes : {false, true}) {
      if (link(between_nodes).stretch == 1) continue;
      for (const std::size_t t : rank.under_way[between_nodes ? 1 : 0]) change_speed(t);
    }
  }
  void finish_computing(std::size_t r) {
    Rank& rank = ranks_[r];
    set_computing(r, false);
    note(r, rank.kinds[rank.work], rank.began, now_);
    rank.times.busy += now_ - rank.began;
    step(rank);
    advance(r);
  }

  /// To the next instruction.
  static void step(Rank& rank) {
    rank.call_made = false;
    ++(rank.section != nullptr ? rank.next_inside : rank.next);
  }
  static Operation& operation_of(Rank& rank, int index) {
    auto& list = rank.section != nullptr ? rank.section->operations : rank.operations;
    return list[static_cast<std::size_t>(index)];
  }
  /// Null: none is left.
  static const Instruction* next_instruction(Rank& rank) {
    if (rank.section != nullptr) {
      const auto& inside = rank.section->what->instructions;
      if (rank.next_inside < inside.size()) return &inside[rank.next_inside];
      rank.section = nullptr;
      step(rank);
    }
    const auto& all = rank.trace->instructions;
    return rank.next < all.size() ? &all[rank.next] : nullptr;
  }

  /// Does what the rank can do now.
  void advance(std::size_t r) {
    Rank& rank = ranks_[r];
    while (const Instruction* instruction = next_instruction(rank)) {
      switch (instruction->kind) {
        case Instruction::Kind::compute:
          if (!called(r, rank.launches[static_cast<std::size_t>(instruction->index)])) return;
          rank.work = static_cast<std::size_t>(instruction->index);
          rank.left = rank.seconds[rank.work];
          rank.since = rank.began = now_;
          set_computing(r, true);
          schedule(r);
          return;
        case Instruction::Kind::start: {
          Operation& started = operation_of(rank, instruction->index);
          const bool message = started.what->channel.direction.has_value();
          const bool synchronous = machine_.links.synchronous && message;
          if ((started.what->blocking || synchronous) && !rank.call_made) {
            rank.host = std::max(rank.host, now_);
          }
          if (!called(r, 1e-6 * (message ? machine_.links.message_us : machine_.links.launch_us))) {
            return;
          }
          match(r, started);
          release(r, started);
          break;
        }
        case Instruction::Kind::wait: {
          Operation& waited = operation_of(rank, instruction->index);
          force(r, waited);
          if (!waited.done) {
            if (rank.waits_for == nullptr) rank.waits_since = now_;
            rank.waits_for = &waited;
            return;
          }
          if (rank.waits_for != nullptr) {
            note(r, waited.part, rank.waits_since, now_);
            rank.waits_for = nullptr;
          }
          // Messages between stages are MPI's, for which the host waits itself.
          if (waited.what->blocking || waited.what->channel.direction) {
            rank.host = std::max(rank.host, machine_.links.synchronous ? now_ : waited.end);
          }
          break;
        }
        case Instruction::Kind::wait_for_device:
          rank.host = std::max(rank.host, now_);
          break;
        case Instruction::Kind::section: {
          SectionState& section = rank.sections[static_cast<std::size_t>(instruction->index)];
          if (pass(r, section)) return;
          rank.section = &section;
          rank.next_inside = 0;
          continue;
        }
      }
      step(rank);
    }
    if (rank.ended) return;
    rank.ended = true;
    rank.times.end = now_;
  }

  /// Whether the host has made the call by now, which takes it so long; if not, the rank continues
  /// when it has.
  bool called(std::size_t r, double seconds) {
    Rank& rank = ranks_[r];
    const bool device = !machine_.on_host();
    if (!rank.resuming && !rank.call_made) {
      rank.call_made = true;
      rank.host = device ? rank.host + seconds : now_;
      rank.launched += seconds;
      rank.lead = std::max(rank.lead, rank.launched - now_);
    }
    if (!device || ready_host_ || rank.host <= now_) return true;
    note(r, launches_, now_, rank.host);
    rank.resuming = true;
    add_event(Event::Kind::resume, rank.host, r);
    return false;
  }

  // Sections

  /// Whether the rank can go to the section's end at once: nobody observes its calls, and its times
  /// are always the same where nothing else is under way, or can come to be.
  bool pass(std::size_t r, SectionState& section) {
    Rank& rank = ranks_[r];
    if (!section.apart || observe_) return false;
    const bool slows = std::max(machine_.node.slowdown, machine_.network.slowdown) > 1;
    if (slows ? rank.queued > 0 : uses_busy_stream(rank, section)) {
      return false;
    }
    if (!section.times) section.times = times_of(rank, section);
    const SectionTimes& times = *section.times;
    if (!machine_.on_host() && rank.host + times.lead > now_) return false;
    rank.passing = &section;
    add_event(Event::Kind::passed, now_ + times.seconds, r);
    return true;
  }
  static bool uses_busy_stream(const Rank& rank, const SectionState& section) {
    return std::ranges::any_of(section.what->operations, [&](const StreamOperation& each) {
      return !rank.streams[stream_of(each)].empty();
    });
  }
  void finish_section(std::size_t r) {
    Rank& rank = ranks_[r];
    const SectionTimes& times = *rank.passing->times;
    rank.passing = nullptr;
    if (!machine_.on_host()) rank.host += times.launches;
    rank.times.busy += times.busy;
    for (const auto& [part, seconds] : times.parts) add(rank, part, seconds);
    step(rank);
    advance(r);
  }
  SectionTimes times_of(const Rank& rank, const SectionState& section) {
    Trace trace;
    trace.works = rank.trace->works;
    trace.operations = section.what->operations;
    trace.instructions = section.what->instructions;
    trace.overlap = rank.trace->overlap;
    std::vector<RankClass> alone;
    alone.push_back({rank.times.rank, std::move(trace)});
    const ClassOf the_only = [](int) { return 0; };
    Simulation simulation(shape_, alone, the_only, machine_, {}, true);
    const StepTimes step = simulation.run();
    const RankTimes& own = step.ranks.front();
    SectionTimes times{.seconds = own.end, .busy = own.busy};
    times.launches = simulation.ranks_.front().launched;
    times.lead = simulation.ranks_.front().lead;
    for (const auto& [name, seconds] : own.parts) times.parts.emplace_back(part_of(name), seconds);
    return times;
  }

  // Streams

  static std::size_t stream_of(const StreamOperation& operation) {
    return operation.blocking ? 0 : static_cast<std::size_t>(operation.stream) + 1;
  }
  bool waits_for_its_rank(const Rank& rank, const StreamOperation& operation) const {
    if (operation.channel.direction || operation.blocking) return false;
    if (machine_.on_host() && !rank.trace->overlap) return true;
    const GroupKind kind = operation.channel.kind;
    const bool gradients =
        kind == GroupKind::data || kind == GroupKind::shard || kind == GroupKind::replica;
    return gradients && !machine_.links.overlap;
  }
  void release(std::size_t r, Operation& operation) {
    Rank& rank = ranks_[r];
    const std::size_t stream = stream_of(*operation.what);
    rank.streams[stream].push_back(&operation);
    ++rank.queued;
    if (waits_for_its_rank(rank, *operation.what)) return;
    operation.released = true;
    continue_stream(r, stream);
  }
  /// The rank waits for `operation`, and so works on all before it.
  void force(std::size_t r, Operation& operation) {
    Rank& rank = ranks_[r];
    if (operation.done) return;
    const std::size_t stream = stream_of(*operation.what);
    for (Operation* each : rank.streams[stream]) {
      each->released = true;
      if (each == &operation) break;
    }
    continue_stream(r, stream);
  }
  void continue_stream(std::size_t r, std::size_t stream) {
    Rank& rank = ranks_[r];
    std::deque<Operation*>& queue = rank.streams[stream];
    while (!queue.empty()) {
      Operation& front = *queue.front();
      if (!front.released) return;
      if (!front.begun) {
        front.begun = true;
        front.left = front.transfers.size();
        for (const std::size_t t : front.transfers) arrive(t);
      }
      if (front.left > 0) return;
      front.done = true;
      front.end = now_;
      if (observe_ && front.since >= 0) {
        observe_({r, front.what, part_names_[front.part], front.since, now_});
      }
      queue.pop_front();
      --rank.queued;
    }
  }
  void arrive(std::size_t t) {
    Transfer& transfer = transfers_[t];
    ++transfer.arrived;
    if (transfer.arrived < transfer.sides) return;
    for (const auto& [r, operation] : transfer.operations) {
      change_load(r, t, true);
      if (operation->since < 0) operation->since = now_;
    }
    transfer.left = transfer.seconds;
    transfer.since = now_;
    transfer.speed = speed(transfer);
    schedule_transfer(t);
  }
  const Machine::Link& link(bool between_nodes) const {
    return between_nodes ? machine_.network : machine_.node;
  }
  double speed(const Transfer& transfer) const {
    const bool beside = std::ranges::any_of(
        transfer.operations, [&](const auto& side) { return ranks_[side.first].computing; });
    return beside ? 1 / link(transfer.between_nodes).stretch : 1;
  }
  void schedule_transfer(std::size_t t) {
    Transfer& transfer = transfers_[t];
    add_event(Event::Kind::transferred, now_ + transfer.left / transfer.speed, t,
              ++transfer.version);
  }
  /// One of its ranks has begun or stopped to compute.
  void change_speed(std::size_t t) {
    Transfer& transfer = transfers_[t];
    const double now = speed(transfer);
    if (now == transfer.speed) return;
    transfer.left = std::max(0.0, transfer.left - (now_ - transfer.since) * transfer.speed);
    transfer.since = now_;
    transfer.speed = now;
    schedule_transfer(t);
  }
  void finish_transfer(std::size_t t) {
    const auto sides = transfers_[t].operations;
    for (const auto& [r, operation] : sides) {
      change_load(r, t, false);
      --operation->left;
    }
    if (transfers_[t].sequence == nullptr) free_transfers_.push_back(t);
    for (const auto& [r, operation] : sides) {
      continue_stream(r, stream_of(*operation->what));
      Rank& rank = ranks_[r];
      if (rank.waits_for != nullptr && rank.waits_for->done) advance(r);
    }
  }

  const comm::GridShape& shape_;
  const std::vector<RankClass>& classes_;
  const ClassOf& class_of_;
  const Machine& machine_;
  SpanObserver observe_;
  bool ready_host_;
  std::vector<std::string> part_names_;
  std::size_t launches_;  // a part
  std::vector<Rank> ranks_;
  std::vector<Transfer> transfers_;
  std::vector<std::size_t> free_transfers_;  // of one class
  std::map<std::string, Sequence> sequences_;
  std::map<std::pair<GroupKind, int>, Placement> placements_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t next_event_ = 0;
  double now_ = 0;
};

}  // namespace

const RankTimes& StepTimes::longest() const {
  return *std::ranges::max_element(ranks, {}, &RankTimes::busy);
}

StepTimes simulate(const comm::GridShape& shape, const std::vector<RankClass>& classes,
                   const ClassOf& class_of, const Machine& machine, const SpanObserver& observe) {
  return Simulation(shape, classes, class_of, machine, observe).run();
}

}  // namespace trireme::plan
