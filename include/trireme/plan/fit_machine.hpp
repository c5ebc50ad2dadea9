// Constants of a machine file, fitted to what was measured on the machine.
#pragma once

#include <vector>

#include "trireme/plan/machine.hpp"
#include "trireme/plan/measure_machine.hpp"

namespace trireme::plan {

/// The constants of computation that fit best. Of the type with the fastest products, the peak is
/// the greatest measured rate, and constants of products and attention minimize what calibrate()
/// does, each work counted by its share of time. Other types share all but the peak. The works
/// themselves become its table.
Machine fit_works(Machine machine, const std::vector<MeasuredWork>& works);
/// The constants of links.node, or of links.network where the placement has several nodes.
Machine fit_links(Machine machine, const std::vector<MeasuredOperation>& operations);
/// Measures what groups of the kind use: sets their link's constants, slowdown and stretch, and for
/// all groups the host's time to start an operation. Returns what the link is fitted to. The same
/// on every rank; collective over the grid.
std::vector<MeasuredOperation> measure_links(Machine& machine, comm::Grid& grid,
                                             comm::GroupKind kind, const Placement& placement,
                                             ops::Ops& ops, device::Device& device);
/// What the host takes between operations that it computes: where the steps are of one rank, all
/// that passes between them, and beside that what it takes in a step before and after them; else
/// the median, since ranks wait for each other.
Machine fit_host(Machine machine, const std::vector<TimedStep>& steps, bool alone);

/// Mean of |ln(predicted/measured)|; of works by share of time, each predicted by the others.
double mean_error(const Machine& machine, const std::vector<MeasuredWork>& works);
double mean_error(const Machine& machine, const std::vector<MeasuredOperation>& operations);

}  // namespace trireme::plan
