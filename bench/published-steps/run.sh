#!/usr/bin/env bash
# Predicts the step times that others measured: bench/published-steps/run.sh [trireme] [fit]
# With `fit` it first fits data/machines/a100-megatron-deepspeed.toml to fitted.csv.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
trireme=${1:-$here/../../build/release/trireme}
machine=$here/../../data/machines/a100-megatron-deepspeed.toml
keys=products.rows_half,products.columns_half,products.depth_half
keys+=,attention.score_bytes,attention.launches,attention.slow_factor,attention.forward_efficiency,attention.backward_efficiency
keys+=,loss.launches,memory.efficiency,memory.update_efficiency,device.launch_us,device.operation_us,device.step_ms
keys+=,links.launch_us,links.message_us,links.node.latency_us,links.node.gb_per_s
keys+=,links.network.latency_us,links.network.gb_per_s
predict() { # FILE FLAGS...
  "$trireme" plan --config "$here/${config:-megatron-deepspeed}.toml" --machine "$machine" \
    --measured "$here/$1" "${@:2}"
}
if [ "${2-}" = fit ]; then predict fitted.csv --fit "$keys" --output "$machine" | tail -1; fi
for file in fitted.csv one-node.csv 39b.csv; do
  echo "$file"
  predict "$file"
done
echo sequence-parallel.csv
machine=$here/../../data/machines/a100-megatron-lm.toml config=megatron-lm predict sequence-parallel.csv
echo torchtitan.csv
machine=$here/../../data/machines/h100-torchtitan.toml config=torchtitan predict torchtitan.csv
