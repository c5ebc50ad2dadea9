// The least that a rank must send in a step, worked out from what it will do.
#pragma once

#include <map>
#include <string>

#include "trireme/parallel/stage.hpp"

namespace trireme::train {

/// Bytes that this rank sends at least in one step of the configured method, by the names that
/// Grid::traffic uses, where they are not 0: an all-reduce of S bytes over n ranks sends 2(n−1)/n·S
/// (Patarasuk and Yuan, 2009), a reduce-scatter or an all-gather (n−1)/n·S, a message itself.
/// Gradients count as fp32, parameters and activations in the type that units read. Tensor
/// parallelism: two all-reduces of a micro-batch's activations in the forward of each block and two
/// in its backward, one each for the embedding's output and the gradient that the head hands back
/// (Shoeybi et al., 2019); what recomputation repeats is not counted, since it could be kept.
/// Agreements on a few numbers (norms, losses) are left out.
std::map<std::string, double> least_traffic(const parallel::Stage& stage);

/// Bytes that this rank sends at least in one average of `buffers` flat buffers
/// (Averaging::summed_buffers) over so many workers: all-reduces, 2(n−1)/n of 4 bytes of each
/// element.
double average_traffic(const parallel::Stage& stage, int workers, std::int64_t buffers);

}  // namespace trireme::train
