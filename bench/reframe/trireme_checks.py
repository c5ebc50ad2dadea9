# ReFrame checks of an installed or built Trireme: sanity, correctness of every part, and figures with units.
#   TRIREME=/path/to/trireme reframe -C bench/reframe/settings.py -c bench/reframe/trireme_checks.py -r
# On a site, -C names the site's own settings; `trireme` is looked up in PATH (a module) unless TRIREME names it.
import os

import reframe as rfm
import reframe.utility.sanity as sn


class TriremeBench(rfm.RunOnlyRegressionTest):
    """One part of `trireme bench`: all results right, and figures taken from its table."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = os.environ.get("TRIREME", "trireme")
    num_tasks = 2
    num_cpus_per_task = 1

    @run_before("run")
    def set_threads(self):
        self.env_vars["OMP_NUM_THREADS"] = str(self.num_cpus_per_task)

    @sanity_function
    def all_results_are_right(self):
        return sn.assert_found(r"^# wrong results: 0$", self.stdout)


@rfm.simple_test
class TriremeCollectives(TriremeBench):
    operation = parameter(["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_receive"])
    size = variable(int, value=1 << 20)

    @run_before("run")
    def set_options(self):
        self.executable_opts = ["bench", "collectives", "--operations", self.operation, "--begin", "8",
                                "--end", str(self.size), "--factor", str(self.size // 8)]

    @performance_function("us")
    def latency(self):
        return sn.extractsingle(r"^ +8 +\d+ +fp32 +\S+ +\S+ +(\S+)", self.stdout, 1, float)

    @performance_function("GB/s")
    def bus_bandwidth(self):
        return sn.extractsingle(rf"^ +{self.size} +\d+ +fp32 +\S+ +\S+ +\S+ +\S+ +(\S+)", self.stdout, 1, float)


@rfm.simple_test
class TriremeProducts(TriremeBench):
    num_tasks = 1
    type = parameter(["fp32", "bf16"])

    @run_before("run")
    def set_options(self):
        self.executable_opts = ["bench", "gemm", "--shapes", "1024x1024x1024", "--forms", "NT", "--types", self.type,
                                "--iterations", "5"]

    @performance_function("GFLOP/s")
    def speed(self):
        return sn.extractsingle(r"^ +1024 +1024 +1024 +NT +\S+ +\S+ +\S+ +\S+ +\S+ +(\S+)", self.stdout, 1, float)


@rfm.simple_test
class TriremeMemory(TriremeBench):
    executable_opts = ["bench", "copy", "--begin", "67108864", "--end", "67108864", "--threads", "1"]

    @performance_function("GB/s")
    def all_ranks(self):
        return sn.extractsingle(r"^ +67108864 +host +1 +\S+ +\S+ +\S+ +\S+ +\S+ +(\S+)", self.stdout, 1, float)


@rfm.simple_test
class TriremeTraining(TriremeBench):
    """A short run on text of its own making, in the stage folder; its figure of merit."""

    prerun_cmds = [
        "yes 'In the beginning was the word, and the word was with the machine.' | head -n 4000 >text",
        f"{os.environ.get('TRIREME', 'trireme')} prepare --input text --output dataset",
    ]
    executable_opts = ["train", "--model.preset", "nano", "--data.path", "dataset", "--train.output", "run",
                       "--train.steps", "20", "--train.batch", "8"]

    @sanity_function
    def has_figure_of_merit(self):
        return sn.assert_found(r"^Figure of Merit \(FOM\): \S+ tokens/s", self.stdout)

    @performance_function("tokens/s")
    def tokens_per_second(self):
        return sn.extractsingle(r"^Figure of Merit \(FOM\): (\S+) tokens/s", self.stdout, 1, float)
