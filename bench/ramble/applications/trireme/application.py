# Trireme for Ramble: a short training run, and the collectives. Not yet tried with Ramble itself (its syntax
# is checked by tests/structure/install_test.sh).
#   ramble repo add bench/ramble && ramble workspace create -c bench/ramble/ramble.yaml trireme
from ramble.appkit import *


class Trireme(ExecutableApplication):
    """Transformer training under MPI."""

    name = "trireme"
    tags("ai", "training", "mpi")

    executable(
        "text",
        "yes 'In the beginning was the word, and the word was with the machine.' | head -n 4000 > {experiment_run_dir}/text",
        use_mpi=False,
    )
    executable(
        "prepare",
        "trireme prepare --input {experiment_run_dir}/text --output {experiment_run_dir}/dataset",
        use_mpi=False,
    )
    executable(
        "train",
        "trireme train --model.preset {preset} --data.path {experiment_run_dir}/dataset "
        "--train.output {experiment_run_dir}/run --train.batch {batch} --train.steps {steps}",
        use_mpi=True,
    )
    executable(
        "collectives",
        "trireme bench collectives --operations {operation} --begin {bytes} --end {bytes}",
        use_mpi=True,
    )

    workload("train", executables=["text", "prepare", "train"])
    workload("collectives", executable="collectives")

    workload_variable("preset", default="nano", description="named model", workloads=["train"])
    workload_variable("batch", default="8", description="sequences of a step", workloads=["train"])
    workload_variable("steps", default="20", description="steps", workloads=["train"])
    workload_variable("operation", default="all_reduce", description="collective", workloads=["collectives"])
    workload_variable("bytes", default="1048576", description="bytes of the buffer", workloads=["collectives"])

    log = "{experiment_run_dir}/{experiment_name}.out"
    figure_of_merit(
        "tokens per second",
        log_file=log,
        fom_regex=r"Figure of Merit \(FOM\): (?P<fom>\S+) tokens/s",
        group_name="fom",
        units="tokens/s",
    )
    figure_of_merit(
        "bus bandwidth",
        log_file=log,
        fom_regex=r"^ +\d+ +\d+ +fp32 +\S+ +\S+ +\S+ +\S+ +(?P<busbw>\S+)",
        group_name="busbw",
        units="GB/s",
    )
    success_criteria(
        "right", mode="string", match=r".*(Figure of Merit \(FOM\): |# wrong results: 0).*", file=log
    )
